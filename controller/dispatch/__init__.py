"""The dispatch machine: queries from arrival to answer or refusal. No I/O, no clock."""
