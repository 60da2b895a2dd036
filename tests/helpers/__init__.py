"""What the black-box tests share: a raw MQTT client, a broker in its own processes, and `covers`."""

import pytest

from tbmq.protocol import MQTT_3_1, MQTT_3_1_1, MQTT_5
from tests.helpers.broker import Broker, is_mosquitto, run_broker
from tests.helpers.client import Client, Closed, raw_packet, raw_string
from tests.helpers.covers import covers

NAMES_OF_LEVELS = {MQTT_3_1: "v3.1", MQTT_3_1_1: "v3.1.1", MQTT_5: "v5"}

each_level = pytest.mark.parametrize("level", [MQTT_3_1_1, MQTT_5], ids=NAMES_OF_LEVELS.get)
each_level_with_3_1 = pytest.mark.parametrize("level", [MQTT_3_1, MQTT_3_1_1, MQTT_5], ids=NAMES_OF_LEVELS.get)

__all__ = [
    "Broker",
    "Client",
    "Closed",
    "covers",
    "each_level",
    "each_level_with_3_1",
    "is_mosquitto",
    "raw_packet",
    "raw_string",
    "run_broker",
]
