"""Selection policies: one file each."""
