"""How the shipped prior is made; nothing that serves imports this."""
