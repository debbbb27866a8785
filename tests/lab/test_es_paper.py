"""The published search, to the letter."""

from __future__ import annotations

from epp.lab.experiments.tuner_paper import EsPaper


def test_it_starts_and_hops_as_published_and_stays_in_its_box() -> None:
    es = EsPaper(seed=1)
    assert es.weights == {"rtt_weight": 0.5, "queue_weight": 0.1}
    assert [n for n in range(1, 401) if es.tell(1000.0 + n)][:4] == [128, 160, 192, 224]
    assert es.best_score == -(1001.0 + round(0.95 * 127)) / 1000.0
    better = EsPaper(seed=2)
    for number in range(3000):
        better.tell(3000.0 - number * 0.9)  # ever better: everything is accepted
        assert 0.05 <= better.weights["rtt_weight"] <= 2.0
    assert better.sigma > 1e3  # no ceiling: the fault that put candidates on the faces of the box
    while not es.stopped:
        es.tell(5000.0 + es.samples)
    assert es.weights == es.best
