"""HAProxy before the gateways: how it is started, kept running, and counted."""
