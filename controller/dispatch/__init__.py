"""The dispatch machine: a gateway's queries, from arrival to answer or refusal. No I/O, no clock."""
