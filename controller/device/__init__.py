"""The device machine: what one worker holds, loads, frees and runs. No I/O, no clock."""
