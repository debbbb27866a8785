"""Pickers as processes that share over a real nats-server: what users see, and what its failures cost."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import nkeys
import pytest
from nats import connect

from epp.cluster.messages import Group, Lead, Message, encode
from epp.config.plan import Plan, render_plan
from epp.feeds.lead import read_lead
from epp.records.schema import join
from tests.kit.certificates import self_signed
from tests.kit.events import opinion, pictures
from tests.kit.forked import Forked
from tests.kit.kubefollow import kubeconfig
from tests.kit.kubeserver import KubeServer
from tests.kit.nats import nats_server
from tests.kit.picker import PickerProcess, Serving, until_seen
from tests.kit.records import ended, recorded
from tests.kit.replicas import QUICK, quick_config
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from nats.aio.msg import Msg

    from epp_lab.demo.nats import Nats

pytestmark = pytest.mark.envoy

TEXT = "tell me more " * 400


class Pair:
    """Two pickers of one pool behind an Envoy each.

    Args:
        folder: for all of it.
        url: of NATS.
        common: policy of both.
        first: configuration of the first picker alone.
        second: configuration of the second picker that differs.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        common: str = "prefix-cache",
        first: Mapping[str, Any] = {},
        **second: Any,
    ) -> None:
        for name in ("one", "two"):
            (folder / name).mkdir()
            (folder / name / "secret").write_text("0123456789abcdef0123456789abcdef")
        shared: dict[str, Any] = {"nats": {"url": url}, "prefix": {"secret_file": "secret"}}
        shared["policy"] = {"name": common}
        self.one = Serving(folder / "one", **{**shared, **first})
        self._folder, self._second = folder / "two", {**shared, **second}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.one)
        self.two = Serving(
            self._folder, upstreams=[Running(spec.address) for spec in self.one.specs()], **self._second
        )
        await self._stack.enter_async_context(self.two)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def meet(self) -> None:
        for serving in (self.one, self.two):
            await serving.picker.until_metric("epp_cluster_peers", lambda value: value == 1)

    async def led(self) -> tuple[Serving, Serving]:
        """Wait until one leads; it and the other."""
        pickers = [self.one, self.two]
        async with asyncio.timeout(240):
            while len(leaders := [each for each in pickers if read_lead(each.folder / "records").leads]) != 1:
                await asyncio.sleep(0.1)
        pickers.remove(leaders[0])
        return leaders[0], pickers[0]


class Running:
    """A replica that somebody else has started."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def __aenter__(self) -> object:
        return self

    async def __aexit__(self, *_: object) -> None:
        """It goes on."""


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Nats]:
    async with nats_server(tmp_path) as server:
        yield server


async def told(serving: Serving) -> None:
    """Wait until its peer has sent two further messages, of which the second has all that was known when this began."""
    received = await serving.picker.metric("epp_cluster_messages_total", result="received")
    await serving.picker.until_metric(
        "epp_cluster_messages_total", lambda value: value >= received + 2, result="received"
    )


async def cached(serving: Serving, text: str = TEXT) -> int:
    status, body = await serving.chat(text)
    assert status == 200
    found: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


async def test_two_pickers_find_each_others_prefixes(tmp_path: Path, nats: Nats) -> None:
    async with Pair(tmp_path, nats.url) as pair:
        await pair.meet()
        assert await cached(pair.one) == 0
        # A holder with more requests under way than the others would be passed over.
        await pair.one.picker.until_metric("epp_requests_in_flight", lambda value: value == 0)
        await told(pair.two)
        assert await cached(pair.two) > 0
        assert await pair.two.picker.metric("epp_cluster_change_age_seconds", quantile="0.5") > 0.0
        assert await pair.two.picker.metric("epp_cluster_messages_total", result="received") > 0
        async with pair.two.http.get(f"http://{pair.one.picker.http}/decisions/newest") as answer:
            made = await answer.json()
        async with pair.two.http.get(f"http://{pair.two.picker.http}/decisions/{made['id']}") as answer:
            assert await answer.json() == made
        async with pair.two.http.get(f"http://{pair.two.picker.http}/decisions/unknown") as answer:
            assert answer.status == 404
        await pair.one.picker.stop()
        await pair.two.picker.until_metric("epp_cluster_peers", lambda value: value == 0)


async def test_a_newcomer_lets_those_go_first_who_wait_at_another_picker(tmp_path: Path, nats: Nats) -> None:
    settings: dict[str, Any] = {"queue": {"enabled": True, "ttl_s": 300.0}, "envoy": {"queue_wait_s": 300.0}}
    first = {**settings, "replicas": [quick_config()]}
    async with Pair(tmp_path, nats.url, first=first, **settings) as pair:
        await pair.meet()
        assert await cached(pair.two) == 0
        assert await pair.two.picker.metric("epp_queue_seconds_count") == 0
        pair.one.write_pool([])  # so that its requests wait, while the other's engine has room
        await pair.one.picker.until_metric("llm_d_epp_ready_endpoints", lambda value: value == 0)
        waits = asyncio.ensure_future(pair.one.chat())
        await pair.one.picker.until_metric("llm_d_epp_flow_control_queue_size", lambda value: value == 1)
        assert await pair.one.picker.metric("epp_queue_without_endpoint") == 1
        await told(pair.two)
        assert (await pair.two.chat())[0] == 200
        assert await pair.two.picker.metric("epp_queue_seconds_count") == 1
        waits.cancel()


async def test_an_agent_is_held_for_a_place_that_another_picker_gave_to_one(
    tmp_path: Path, nats: Nats
) -> None:
    settings: dict[str, Any] = {
        "queue": {"enabled": True, "programs": {"enabled": True}},
        "envoy": {"queue_wait_s": 600.0},
    }
    large = dataclasses.replace(QUICK, context_tokens=1_000_000, kv_capacity_tokens=400_000)
    first, context = {**settings, "replicas": [quick_config(engine_class=large)]}, "a word or two " * 100_000
    async with Pair(tmp_path, nats.url, first=first, **settings) as pair:
        await pair.meet()
        assert (await pair.one.chat(context, headers={"x-session-id": "first"}))[0] == 200
        await pair.two.picker.until_metric("epp_programs_active", lambda value: value == 1)
        held = asyncio.ensure_future(pair.two.chat(f"2 {context}", headers={"x-session-id": "second"}))
        await pair.two.picker.until_metric("epp_program_held", lambda value: value == 1)
        assert (await pair.two.chat())[0] == 200
        held.cancel()


async def test_one_page_shows_the_pickers_of_a_cluster(tmp_path: Path, nats: Nats) -> None:
    async with Pair(tmp_path, nats.url) as pair:
        await pair.meet()
        async with pictures(pair.one.picker.http) as heard:
            await pair.one.chat()
            await pair.two.chat()
            picture = await anext(heard)
            while (len(picture["pickers"]), len(picture["decisions"])) != (2, 2):
                picture = await anext(heard)
        assert "of 2 decisions" in await opinion(pair.one.picker.http, "random")


async def test_without_nats_pickers_go_on_alone_and_share_again_when_it_is_back(
    tmp_path: Path, nats: Nats
) -> None:
    async with Pair(tmp_path, nats.url) as pair:
        await pair.meet()
        async with pair.one.under_load(1) as seen, pair.two.under_load(1) as also:
            nats.kill()
            await nats.stop()
            for serving in (pair.one, pair.two):
                await serving.picker.until_metric("epp_cluster_connected", lambda value: value == 0)
                await serving.picker.until_metric("epp_cluster_peers", lambda value: value == 0)
            assert await cached(pair.one, "alone " * 400) == 0
            await nats.start()
            await pair.meet()
            os.kill(nats.pid, signal.SIGSTOP)
            for serving in (pair.one, pair.two):
                await serving.picker.until_metric("epp_cluster_peers", lambda value: value == 0)
            os.kill(nats.pid, signal.SIGCONT)
            await pair.meet()
        assert set(seen) == set(also) == {200}
        await until(lambda: knows(pair.two, "alone " * 400))


async def knows(serving: Serving, text: str) -> bool:
    return await cached(serving, text) > 0


async def test_who_may_not_share_says_so_and_serves(tmp_path: Path) -> None:
    users = "authorization {\nuser: epp\npassword: right\n}"
    async with nats_server(tmp_path, users) as server:
        right = server.url.replace("//", "//epp:right@")
        wrong = {"url": server.url.replace("//", "//epp:wrong@")}
        async with Pair(tmp_path, right, nats=wrong) as pair:
            await pair.one.picker.until_metric("epp_cluster_connected", lambda value: value == 1)
            said = "no NATS, this picker decides alone: nats: 'Authorization Violation'"
            await until(lambda: said in pair.two.picker.log())
            assert await cached(pair.two) == 0
            assert pair.two.picker.log().count(said) == 1
            assert await pair.one.picker.metric("epp_cluster_peers") == 0


async def test_over_tls_with_a_key_of_ones_own(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path / "tls.crt", tmp_path / "tls.key", "nats")
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    (tmp_path / "seed").write_bytes(seed)
    user = nkeys.from_seed(seed).public_key.decode()
    lines = f'tls {{cert_file: "{cert}", key_file: "{key}"}}', f"authorization {{users: [{{nkey: {user}}}]}}"
    async with nats_server(tmp_path, *lines) as server:
        cluster = {"url": server.url.replace("nats://", "tls://"), "credentials_file": str(tmp_path / "seed")}
        cluster["ca_file"] = str(cert)
        async with Pair(tmp_path, server.url, nats=cluster) as pair:
            await pair.two.picker.until_metric("epp_cluster_connected", lambda value: value == 1)
            assert await pair.one.picker.metric("epp_cluster_connected") == 0, "it has neither"


def weights(rtt_weight: float) -> bytes:
    return render_plan(Plan({"rtt_weight": rtt_weight}, "gorgo"))


async def until_in_force(serving: Serving, rtt_weight: float) -> None:
    await serving.picker.until_metric(
        "epp_weight", lambda value: value == rtt_weight, name="rtt_weight", arm="incumbent"
    )


async def test_the_leader_has_everybodys_records_and_gives_everybody_its_weights_and_is_replaced(
    tmp_path: Path, nats: Nats
) -> None:
    async with Pair(tmp_path, nats.url, "gorgo") as pair, AsyncExitStack() as stack:
        await pair.meet()
        leader, other = await pair.led()
        contents: list[bytes] = []
        client = await stack.enter_async_context(await connect(nats.url))

        async def note(message: Msg) -> None:
            contents.append(message.data)

        await client.subscribe("epp.1.default.file", cb=note)
        (leader.folder / "weights.yaml").write_bytes(weights(0.7))
        await until_in_force(other, 0.7)
        (other.folder / "weights.yaml").write_bytes(weights(0.9))  # a sidecar that has not heard yet
        await until(lambda: (other.folder / "weights.yaml").read_bytes() == weights(0.7))
        await until_in_force(other, 0.7)

        async with other.under_load(8) as seen:
            await until_seen(seen, 100)
        await until(lambda: ended(leader.folder / "records") == seen.total())
        requests = {each.decision["id"]: each.decision for each in join(recorded(leader.folder / "records"))}
        assert requests == {
            each.decision["id"]: each.decision for each in join(recorded(other.folder / "records"))
        }
        versions = {decision["weights_version"] for decision in requests.values()}
        assert versions == {version_in_force(await leader.picker.metrics())}

        await leader.picker.kill()
        await until(lambda: _leads(other))
        assert await other.picker.metric("epp_cluster_term") == 2
        (other.folder / "weights.yaml").write_bytes(weights(0.9))
        await until_in_force(other, 0.9)
        await leader.picker.start()
        await until_in_force(leader, 0.9)
        assert await leader.picker.metric("epp_cluster_term") == 2
        assert not read_lead(leader.folder / "records").leads

        await client.publish("epp.1.default.file", contents[0])  # again: of a process that is gone
        for serving, reason in ((leader, "unproven"), (other, "replayed")):
            await serving.picker.until_metric(
                "epp_cluster_messages_total", lambda value: value >= 1, result=f"ignored: {reason}"
            )
            await until_in_force(serving, 0.9)


async def test_the_tuner_of_the_leader_works_for_all_and_the_next_one_goes_on_from_it(
    tmp_path: Path, nats: Nats
) -> None:
    async with Pair(tmp_path, nats.url, "gorgo") as pair, AsyncExitStack() as stack:
        leader, other = await pair.led()

        async def epp(serving: Serving, name: str, *words: str) -> Forked:
            config = ["--config", str(serving.folder / "epp.yaml")]
            return await stack.enter_async_context(Forked(name, ["tune", *words, *config], serving.folder))

        first, second = await epp(leader, "tune"), await epp(other, "tune")
        for serving in (leader, other):
            await serving.picker.until_metric(
                "epp_weights_written_timestamp_seconds", lambda value: value > 0
            )
        assert version_in_force(await leader.picker.metrics()) == version_in_force(
            await other.picker.metrics()
        )
        assert "tuning gorgo" in first.log()
        waiting = f"waiting: {read_lead(other.folder / 'records').leader} leads the pickers"
        await until(lambda: waiting in second.log())
        refused = await epp(other, "freeze", "freeze")
        assert await refused.wait() == 2
        assert "this picker does not lead" in refused.log()
        assert await (await epp(leader, "freeze", "freeze", "--reason", "a fair")).wait() == 0
        weights, memory = other.folder / "weights.yaml", other.folder / "weights.tuner.json"
        await until(lambda: b"a fair" in weights.read_bytes() and b"a fair" in memory.read_bytes())
        await leader.picker.kill()
        await until(lambda: "this picker leads, in term 2" in second.log() and "tuning gorgo" in second.log())
        status = await epp(other, "status", "status")
        assert await status.wait() == 0
        assert "phase: frozen" in status.log()


async def test_in_kubernetes_who_holds_the_lease_leads(tmp_path: Path, nats: Nats) -> None:
    server = KubeServer()
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        pickers: list[PickerProcess] = []
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
            kubernetes = {"selector": "app=llm", "target_ports": [8000], "watch_nodes": False}
            kubernetes["kubeconfig"] = str(kubeconfig(folder / "kubeconfig", server.url))
            picker = PickerProcess(
                folder,
                pool={"kubernetes": kubernetes},
                nats={"url": nats.url},
                prefix={"secret_file": "secret"},
            )
            stack.push_async_callback(picker.stop)
            await picker.start()
            pickers.append(picker)

        def holder() -> str:
            leases = server.store.objects.get(("coordination.k8s.io", "leases"), {})
            return "".join(lease["spec"]["holderIdentity"] for lease in leases.values())

        def leader() -> PickerProcess | None:
            led = {picker: read_lead(picker.folder / "records") for picker in pickers}
            found = [picker for picker, lead in led.items() if lead.leads and lead.leader == holder()]
            return found[0] if len(found) == 1 else None

        await until(leader)
        for picker in pickers:  # who has not heard of a term takes it again, until it hears of it
            await picker.until_metric("epp_cluster_term", lambda value: value >= 1)
        await until(leader)
        killed = leader()
        assert killed is not None
        term = await killed.metric("epp_cluster_term")
        await killed.kill()
        pickers.remove(killed)
        await until(leader)
        assert await pickers[0].metric("epp_cluster_term") > term


async def _leads(serving: Serving) -> bool:
    return (
        await serving.picker.metric("epp_cluster_leading") == 1
        and read_lead(serving.folder / "records").leads
    )


def version_in_force(page: str) -> str:
    (version,) = re.findall(r'epp_weights_written_timestamp_seconds\{[^}]*version="([^"]+)"', page)
    return str(version)


async def test_pickers_share_while_their_secret_is_changed_and_with_nobody_who_has_none(
    tmp_path: Path, nats: Nats
) -> None:
    (tmp_path / "new").write_text("fedcba9876543210fedcba9876543210")
    first = {"prefix": {"secret_file": "secret", "second_secret_file": "../new"}}
    second = {"prefix": {"secret_file": "../new", "second_secret_file": "secret"}}
    async with Pair(tmp_path, nats.url, "random", first, **second) as pair:
        await pair.meet()
        status, response_id = await pair.one.respond()
        await told(pair.two)
        seen = [await pair.two.respond(previous_response_id=response_id) for _ in range(10)]
        assert [status, *(each for each, _ in seen)] == [200] * 11
        await pair.two.picker.until_metric("epp_cluster_index_complete", lambda value: value == 1)
        async with await connect(nats.url) as client:
            lead = Lead(2**64 - 1, "x", 0.0)
            message = Message(Group("default", "random", ""), "x", 0, lead=lead)
            for subject in ("all", "file", "page", "decision"):
                await client.publish(f"epp.1.default.{subject}", encode(message))
            await client.flush()
            for serving in (pair.one, pair.two):
                await serving.picker.until_metric(
                    "epp_cluster_messages_total", lambda value: value == 4, result="ignored: unsigned"
                )
            await pair.meet()


async def test_pickers_that_do_not_fit_ignore_each_other(tmp_path: Path, nats: Nats) -> None:
    async with Pair(tmp_path, nats.url, policy={"name": "gorgo"}) as pair:
        for serving in (pair.one, pair.two):
            await serving.picker.until_metric(
                "epp_cluster_messages_total", lambda value: value > 1, result="ignored: another policy"
            )
            assert await serving.picker.metric("epp_cluster_peers") == 0
