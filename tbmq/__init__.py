"""TBMQ for Python: an MQTT broker with a compiled core."""

__version__ = "0.1.0"
