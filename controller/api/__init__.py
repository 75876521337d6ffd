"""The client's view: a codec of the Open Inference Protocol v2 over HTTP.

Pure functions from bytes to values and back: no sockets, no web framework, no Ray. The application
in ``controller/live`` reads a request, hands its bytes over and sends what comes back.
"""
