"""What a client may publish: the policy is asked once per topic, and what it answered is kept in a bounded table."""

import subprocess
import sys
from collections import deque

import pytest

from tbmq.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import each_level
from tests.helpers.node import memory_bytes, numbered, running_nodes, take_numbers
from tests.reference.batch import crc32c

NOT_AUTHORIZED = 0x87


@pytest.fixture
def start():
    with running_nodes() as start_node:
        yield start_node


# --- who is asked, and how often -------------------------------------------------------------------------


@pytest.mark.parametrize("topics", [1, 8, 100, 5_000])
def test_every_answer_is_right_however_many_topics_there_are(start, topics):
    """Odd topics are forbidden. The table holds 1,024: over that it forgets, and asks again, but never mistakes."""
    node, make = start(receive_maximum=65_535)
    node.judge = lambda topic: NOT_AUTHORIZED if int(topic[2:]) % 2 else 0
    subscriber, publisher = make(), make(username="restricted")
    subscriber.subscribe("t/#")
    rounds = 3
    for _ in range(rounds):
        publisher.send(*(Publish(f"t/{n}", b"%d" % n, 1, packet_id=n + 1) for n in range(topics)))
        codes = [publisher.expect(Puback, packet_id=n + 1).reason_code for n in range(topics)]
        assert codes == [NOT_AUTHORIZED if n % 2 else 0 for n in range(topics)]
        assert take_numbers(subscriber, (topics + 1) // 2) == list(range(0, topics, 2))
    subscriber.expect_nothing()
    assert set(node.asked) == {b"t/%d" % n for n in range(topics)}
    assert node.asked[:topics] == [b"t/%d" % n for n in range(topics)]
    if topics <= 8:
        assert len(node.asked) == topics, "each is asked about once"
    elif topics <= 100:
        assert len(node.asked) < 2 * topics, "most are asked about once"
    assert node.dropped("not_authorized") == rounds * (topics // 2)


def test_a_topic_is_asked_about_once_for_thousands_of_messages(start):
    node, make = start()
    subscriber, publisher = make(), make(username="restricted")
    subscriber.subscribe("t")
    publisher.send(numbered("t", 5_000))
    publisher.send(numbered("t", 500, qos=1))
    assert take_numbers(subscriber, 5_500) == [*range(5_000), *range(500)]
    assert node.asked == [b"t"]


SAME_CHECKSUM = ("t/1ae636a4891c9037", "t/15807c5cbce5d996")
SAME_SLOT = [f"t/{n}" for n in range(20_000) if crc32c(b"t/%d" % n) % 1_024 == 77]


def test_topics_with_the_same_checksum_are_told_apart(start):
    """The table goes by CRC-32C; whoever finds two topics that share it must not borrow the other's permission."""
    one, other = SAME_CHECKSUM
    assert crc32c(one.encode()) == crc32c(other.encode())
    node, make = start()
    node.judge = lambda topic: NOT_AUTHORIZED if topic == other.encode() else 0
    publisher = make(username="restricted")
    for _ in range(4):
        assert publisher.publish(one, b"x", qos=1).reason_code == 0x10
        assert publisher.publish(other, b"x", qos=1).reason_code == NOT_AUTHORIZED


def test_topics_that_displace_each_other_are_judged_rightly_and_cost_little(start):
    node, make = start()
    node.judge = lambda topic: NOT_AUTHORIZED if int(topic[2:]) % 2 else 0
    publisher = make(username="restricted")
    for topic in SAME_SLOT * 3:
        answer = publisher.publish(topic, b"x", qos=1)
        assert answer.reason_code == (NOT_AUTHORIZED if int(topic[2:]) % 2 else 0x10)


def test_a_client_without_rules_is_never_asked_about(start):
    node, make = start()
    node.judge = lambda topic: NOT_AUTHORIZED
    publisher = make()
    assert publisher.publish("t", b"x", qos=1).reason_code == 0x10
    assert node.asked == []


def test_what_was_judged_is_forgotten_when_the_rules_change(start):
    node, make = start()
    subscriber, publisher, other = make(), make(username="restricted"), make(username="restricted")
    subscriber.subscribe("t")
    for client in (publisher, other):
        assert client.publish("t", b"before", qos=1).reason_code == 0
    with node.lock:
        node.judge = lambda topic: NOT_AUTHORIZED
        node.connections[publisher.client_id].forget_permissions()
    assert publisher.publish("t", b"after", qos=1).reason_code == NOT_AUTHORIZED
    assert other.publish("t", b"another one's", qos=1).reason_code == 0
    with node.lock:
        node.judge = lambda topic: 0
        node.connections[publisher.client_id].forget_permissions()
    assert publisher.publish("t", b"again", qos=1).reason_code == 0
    assert [subscriber.take_message().payload for _ in range(4)] == [b"before", b"before", b"another one's", b"again"]
    assert node.asked == [b"t"] * 4


def test_permissions_end_with_the_connection(start):
    node, make = start()
    publisher = make(username="restricted")
    publisher.publish("t", b"x")
    node.judge = lambda topic: NOT_AUTHORIZED
    publisher.close()
    publisher.connect(username="restricted")
    assert publisher.publish("t", b"x", qos=1).reason_code == NOT_AUTHORIZED


def test_an_alias_is_judged_by_the_topic_that_it_stands_for(start):
    node, make = start()
    node.judge = lambda topic: NOT_AUTHORIZED if topic == b"no" else 0
    subscriber, publisher = make(), make(username="restricted")
    subscriber.subscribe("#")
    publisher.publish("no", b"1", qos=1, topic_alias=1)
    publisher.publish("yes", b"2", qos=1, topic_alias=2)
    assert publisher.publish("", b"3", qos=1, topic_alias=1).reason_code == NOT_AUTHORIZED
    assert publisher.publish("", b"4", qos=1, topic_alias=2).reason_code == 0
    assert publisher.publish("no", b"5", qos=1, topic_alias=2).reason_code == NOT_AUTHORIZED
    assert publisher.publish("", b"6", qos=1, topic_alias=2).reason_code == NOT_AUTHORIZED
    assert take_numbers(subscriber, 2) == [2, 4]
    subscriber.expect_nothing()


# --- what a refusal looks like ---------------------------------------------------------------------------


def test_a_refused_publish_of_mqtt_5_is_told_by_its_ack_and_its_id_is_free_again(start):
    node, make = start(receive_maximum=3)
    node.judge = lambda topic: NOT_AUTHORIZED if topic == b"no" else 0
    subscriber, publisher = make(), make(username="restricted")
    subscriber.subscribe("#", qos=2)
    for n in range(5):  # more often than Receive Maximum
        publisher.send(Publish("no", b"x"), Publish("no", b"x", 1, packet_id=7), Publish("no", b"x", 2, packet_id=8))
        publisher.expect(Puback(7, NOT_AUTHORIZED))
        publisher.expect(Pubrec(8, NOT_AUTHORIZED))
        publisher.send(Publish("yes", b"%d" % n, 2, packet_id=8))  # the same id: a new message
        publisher.expect(Pubrec(8))
        publisher.send(Pubrel(8))
        publisher.expect(Pubcomp(8))
        subscriber.take_message(topic="yes", payload=b"%d" % n)
    publisher.send(Pubrel(8))
    publisher.expect(Pubcomp(8, 0x92))
    subscriber.expect_nothing()
    assert node.dropped("not_authorized") == 15


def test_a_refused_publish_below_mqtt_5_is_acknowledged_and_goes_nowhere(start):
    node, make = start()
    node.judge = lambda topic: NOT_AUTHORIZED
    subscriber, publisher = make(), make(MQTT_3_1_1, username="restricted")
    subscriber.subscribe("#", qos=2)
    for _ in range(3):
        publisher.publish("no", b"x")
        publisher.publish("no", b"x", qos=1)
        publisher.publish("no", b"x", qos=2)
    publisher.send(Publish("no", b"x", 2, packet_id=9), Publish("no", b"x", 2, dup=True, packet_id=9))
    publisher.expect(Pubrec(9))
    publisher.expect(Pubrec(9))
    publisher.send(Pubrel(9))
    publisher.expect(Pubcomp(9))
    subscriber.expect_nothing()
    assert node.dropped("not_authorized") == 10


@each_level
def test_a_refused_publish_is_not_retained(start, level):
    node, make = start()
    node.judge = lambda topic: NOT_AUTHORIZED
    publisher = make(level, username="restricted")
    for qos in (0, 1, 2):
        publisher.publish("no", b"x", qos=qos, retain=True)
    assert node.statistics()["retained"] == 0


@each_level
def test_allowed_and_refused_bursts_in_one_write_are_told_apart(start, level):
    node, make = start()
    node.judge = lambda topic: NOT_AUTHORIZED if topic.endswith(b"/no") else 0
    subscriber, publisher = make(), make(level, username="restricted")
    subscriber.subscribe("#")
    bursts = [("a", 40), ("a/no", 40), ("a", 3), ("b/no", 1), ("b", 200), ("a/no", 40)]
    publisher.send(b"".join(numbered(topic, count, level=level) for topic, count in bursts))
    publisher.ping()
    for topic, count in bursts:
        if not topic.endswith("/no"):
            assert take_numbers(subscriber, count, topic) == list(range(count))
    subscriber.expect_nothing()
    assert node.dropped("not_authorized") == 81


def test_an_exception_of_the_policy_refuses_this_message_only(start):
    node, make = start()
    fine = node.judge

    def fail(topic):
        raise RuntimeError("no rules")

    publisher = make(username="restricted")
    node.judge = fail
    assert publisher.publish("t", b"x", qos=1).reason_code == 0x80
    node.judge = fine
    assert publisher.publish("t", b"x", qos=1).reason_code == 0x10  # nothing of it was kept
    assert len(node.errors) == 1 and "no rules" in node.errors.pop()


CLOSES_WHILE_JUDGING = """
from tests.helpers import Client
from tests.helpers.node import Node
from tbmq.packets import Publish
node = Node()
def judge(topic):
    node.connections["c"].close(flush=False)
    return 0x87
node.judge = judge
client = Client(node.address, "c", level={level})
client.connect(username="restricted")
client.send(Publish("t", b"x", {qos}, packet_id={qos}))
client.expect_closed()
node.stop()
print("survived")
"""


@pytest.mark.parametrize(
    ("level", "qos"),
    [(MQTT_5, 0), (MQTT_5, 1), (MQTT_5, 2), (MQTT_3_1_1, 0), (MQTT_3_1_1, 1), (MQTT_3_1_1, 2)],
)
def test_a_policy_may_close_the_connection_that_it_judges(level, qos):
    """Refusing may mean to disconnect. In a process of its own: what is tested is that it does not crash."""
    program = CLOSES_WHILE_JUDGING.format(level=level, qos=qos)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "survived\n", f"exit code {done.returncode}\n{done.stderr[-2_000:]}"


def test_what_is_kept_of_judged_topics_is_bounded(start):
    """Three clients publish to 1,500 topics of 65,535 bytes each; one without rules has filled the other caches."""
    node, make = start()
    node.asked = deque(maxlen=1)
    publishers = [make(username=username) for username in ("free", "restricted", "restricted", "restricted")]
    grown = []
    for publisher in publishers:
        before = memory_bytes()
        for n in range(1_500):
            publisher.send(Publish(f"{n:04}".ljust(65_535, "x")))
        publisher.ping()
        grown.append(memory_bytes() - before)
    assert node.asked
    assert sum(grown[1:]) < 96 * 1_048_576, f"{grown[1:]} bytes are kept"
