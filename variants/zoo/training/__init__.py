"""How the shipped models were made. Scripts, run by hand; nothing here is imported by a server."""
