"""Clients that others wrote: paho-mqtt, aiomqtt, and the command-line tools of Mosquitto."""

import asyncio
import queue
import shutil
import subprocess

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

TIMEOUT_S = 10

each_protocol = pytest.mark.parametrize(
    "protocol", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5], ids=["v3.1", "v3.1.1", "v5"]
)


class Paho:
    """A paho client on its own thread; what happens is put into queues."""

    def __init__(self, broker, client_id, protocol, will=None, clean=True):
        fields = {} if protocol == paho.MQTTv5 else {"clean_session": clean}
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=protocol, **fields)
        self.connected, self.subscribed, self.messages = queue.Queue(), queue.Queue(), queue.Queue()
        self.client.on_connect = lambda client, data, flags, reason, properties: self.connected.put((flags, reason))
        self.client.on_subscribe = lambda client, data, packet_id, reasons, properties: self.subscribed.put(reasons)
        self.client.on_message = lambda client, data, message: self.messages.put(message)
        if will:
            self.client.will_set(*will)
        self.address = broker.address

    def __enter__(self):
        self.client.connect(*self.address, keepalive=30)
        self.client.loop_start()
        self.flags, reason = self.connected.get(timeout=TIMEOUT_S)
        assert reason == 0
        return self

    def __exit__(self, *exception):
        self.client.disconnect()
        self.client.loop_stop()

    def subscribe(self, topic, qos):
        self.client.subscribe(topic, qos)
        assert [reason.value for reason in self.subscribed.get(timeout=TIMEOUT_S)] == [qos]

    def publish(self, *arguments, **fields):
        self.client.publish(*arguments, **fields).wait_for_publish(TIMEOUT_S)


@each_protocol
def test_paho_publishes_and_subscribes(broker, clients, topic, protocol):
    with (
        Paho(broker, clients.new_id(0), protocol) as subscriber,
        Paho(broker, clients.new_id(1), protocol) as publisher,
    ):
        subscriber.subscribe(f"{topic}/+", 2)
        sent = [(f"{topic}/{n}", b"%d" % n, n % 3) for n in range(60)]
        for name, payload, qos in sent:
            publisher.publish(name, payload, qos)
        got = [subscriber.messages.get(timeout=TIMEOUT_S) for _ in sent]
        for wanted in (0, 1, 2):
            assert [(m.topic, m.payload, m.qos) for m in got if m.qos == wanted] == sent[wanted::3]


@each_protocol
def test_paho_gets_retained_messages_and_wills(broker, clients, topic, protocol):
    with (
        Paho(broker, clients.new_id(0), protocol) as subscriber,
        Paho(broker, clients.new_id(1), protocol, will=(f"{topic}/will", b"gone", 1)) as publisher,
    ):
        publisher.publish(f"{topic}/state", b"on", 1, True)
        subscriber.subscribe(f"{topic}/#", 1)
        message = subscriber.messages.get(timeout=TIMEOUT_S)
        assert (message.payload, message.retain) == (b"on", True)
        publisher.client.loop_stop()
        publisher.client.socket().close()  # a cut line
        message = subscriber.messages.get(timeout=TIMEOUT_S)
        assert (message.topic, message.payload) == (f"{topic}/will", b"gone")


def test_paho_resumes_a_session(broker, clients, topic):
    client_id = clients.new_id(0)
    with Paho(broker, client_id, paho.MQTTv311, clean=False) as subscriber:
        assert not subscriber.flags.session_present
        subscriber.subscribe(topic, 1)
    with Paho(broker, clients.new_id(1), paho.MQTTv311) as publisher:
        publisher.publish(topic, b"while away", 1)
    with Paho(broker, client_id, paho.MQTTv311, clean=False) as subscriber:
        assert subscriber.flags.session_present
        assert subscriber.messages.get(timeout=TIMEOUT_S).payload == b"while away"


def test_paho_sends_v5_properties(broker, clients, topic):
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "text/plain"
    properties.ResponseTopic = "answer"
    properties.CorrelationData = b"\x01\x02"
    properties.UserProperty = [("a", "1"), ("a", "2")]
    with Paho(broker, clients.new_id(0), paho.MQTTv5) as client:
        client.subscribe(topic, 1)
        client.publish(topic, b"x", 1, properties=properties)
        got = client.messages.get(timeout=TIMEOUT_S).properties
    assert got.ContentType == "text/plain"
    assert got.ResponseTopic == "answer"
    assert got.CorrelationData == b"\x01\x02"
    assert got.UserProperty == [("a", "1"), ("a", "2")]


@pytest.mark.parametrize("protocol", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5], ids=["v3.1.1", "v5"])
def test_aiomqtt_publishes_and_subscribes(broker, clients, topic, protocol):
    async def main():
        host, port = broker.address
        async with (
            aiomqtt.Client(host, port, identifier=clients.new_id(0), protocol=protocol) as subscriber,
            aiomqtt.Client(host, port, identifier=clients.new_id(1), protocol=protocol) as publisher,
        ):
            await subscriber.subscribe(f"{topic}/#", qos=2)
            for n in range(30):
                await publisher.publish(f"{topic}/{n}", b"%d" % n, qos=n % 3)
            got = set()
            async for message in subscriber.messages:
                got.add((str(message.topic), message.payload))
                if len(got) == 30:
                    return got

    got = asyncio.run(asyncio.wait_for(main(), 3 * TIMEOUT_S))
    assert got == {(f"{topic}/{n}", b"%d" % n) for n in range(30)}


needs_tools = pytest.mark.skipif(not shutil.which("mosquitto_sub"), reason="mosquitto-clients is not installed")


def tool(name, broker, *arguments):
    host, port = broker.address
    command = [name, "-h", host, "-p", str(port), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout


@needs_tools
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["1", "2"])
def test_mosquitto_tools_publish_and_subscribe(broker, clients, topic, version, qos):
    """The subscriber makes its session, leaves, and fetches what was published meanwhile."""
    expiry = ["-x", "60"] if version == "mqttv5" else []
    subscriber = ["-V", version, "-i", clients.new_id(0), "-c", "-q", qos, "-t", f"{topic}/#", *expiry]
    tool("mosquitto_sub", broker, *subscriber, "-E")
    for n in range(5):
        tool("mosquitto_pub", broker, "-V", version, "-q", qos, "-t", f"{topic}/{n}", "-m", f"message {n}")
    output = tool("mosquitto_sub", broker, *subscriber, "-C", "5", "-v")
    assert output.splitlines() == [f"{topic}/{n} message {n}" for n in range(5)]


@needs_tools
def test_mosquitto_tools_see_retained_messages(broker, topic):
    tool("mosquitto_pub", broker, "-q", "1", "-r", "-t", topic, "-m", "kept")
    assert tool("mosquitto_sub", broker, "-t", topic, "-C", "1", "-W", "5") == "kept\n"
    tool("mosquitto_pub", broker, "-q", "1", "-r", "-t", topic, "-n")


@needs_tools
def test_mosquitto_tools_send_v5_properties(broker, clients, topic):
    subscriber = ["-V", "mqttv5", "-i", clients.new_id(0), "-c", "-q", "1", "-t", topic, "-x", "60"]
    tool("mosquitto_sub", broker, *subscriber, "-E")
    properties = ["-D", "publish", "content-type", "text/plain", "-D", "publish", "user-property", "a", "b c"]
    tool("mosquitto_pub", broker, "-V", "mqttv5", "-q", "1", "-t", topic, "-m", "x", *properties)
    assert tool("mosquitto_sub", broker, *subscriber, "-C", "1", "-F", "%p|%C|%P") == "x|text/plain|a:b c\n"
