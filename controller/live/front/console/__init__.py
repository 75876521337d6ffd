"""The operators' console: pages under ``/console``, rendered here, that change nothing."""
