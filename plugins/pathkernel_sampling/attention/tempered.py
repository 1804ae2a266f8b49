"""Chains of learned attention by parallel tempering, each with a pilot and stages of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pathkernel_core.contracts.sampler import Model
from pathkernel_datasets.errors import StudyError
from pathkernel_datasets.results.point import Point
from pathkernel_datasets.results.stored_study import StoredStudy
from pathkernel_sampling.attention.attend import AttentionChains, attention_chains
from pathkernel_sampling.attention.exchanges import DomainTarget, find_directions
from pathkernel_sampling.attention.models import JointModel
from pathkernel_sampling.chains import chain as nuts
from pathkernel_sampling.chains.ensemble import State
from pathkernel_sampling.results import LearnedAttention
from pathkernel_sampling.tempering.mixture import Mixture
from pathkernel_sampling.tempering.replicas import Ladder, Replicas, sweep
from pathkernel_sampling.tempering.stages import MOST_STAGES, Tempered, temper

LARGEST_DIMENSION = 300
"""Dimension up to which a mixture is fitted: its covariances are dense."""

PILOTS = 4
"""Chains of the no-U-turn sampler in a pilot, each of half as many steps as a stage has sweeps."""


class Start(NamedTuple):
    """Target and stages of a chain: all that its sweeps depend on, besides the model."""

    directions: list[np.ndarray]
    tempered: Tempered


def start_chain(
    model: JointModel,
    key: jax.Array,
    sweeps: int,
    report: Callable[[int], None] = lambda steps_done: None,
) -> Start:
    """Run the pilot and the stages of a chain.

    Parameters
    ----------
    model : JointModel
        Of order parameters.
    key : jax.random key
    sweeps : int
        Sweeps of a stage.
    report : callable
        Called with a number of steps so far, of ``sweeps``.
    """
    steps, draws = max(20, sweeps // 4), []
    for number in range(PILOTS):
        pilot_key = jax.random.fold_in(key, number)
        state = nuts.warm_up(model, jax.random.fold_in(pilot_key, 0), steps)
        _, drawn = nuts.draw_states(model, state, jax.random.fold_in(pilot_key, 1), steps)
        draws.append(drawn["position"])
        report(_share_done(sweeps, number + 1, 0))
    pilot = np.concatenate(draws)
    beside = model.dimension - model.posterior.dimension
    directions = find_directions(model.posterior, pilot[:, beside:])
    target = DomainTarget(model, directions)
    reduced = np.stack([target.reduce(x) for x in pilot])
    tempered = temper(
        target,
        reduced,
        jax.random.fold_in(key, PILOTS),
        sweeps,
        lambda stages: report(_share_done(sweeps, PILOTS, stages)),
    )
    return Start(directions, tempered)


def _share_done(sweeps: int, pilots: int, stages: int) -> int:
    return sweeps * (pilots + 2 * stages) // (PILOTS + 2 * MOST_STAGES)


@dataclass(frozen=True, eq=False, kw_only=True)
class TemperedChains(AttentionChains):
    """Chains of replicas between a mixture and the posterior of order parameters and attention.

    The draws of a chain are those of its replica at λ = 1, one a sweep.
    """

    def warm_up(
        self, chain: int, steps: int, report: Callable[[int], None] = lambda steps_done: None
    ) -> State:
        """Run pilot and stages of a chain and return its state."""
        assert isinstance(self.model, JointModel)
        return arrays_of_start(start_chain(self.model, self.key(chain, 0), steps, report))

    def rounds(
        self, chain: int, arrays: State, first: int, rounds: int
    ) -> tuple[State, dict[str, np.ndarray], list[np.ndarray]]:
        """Draw some rounds of a chain: its state, its draws, and the predictions of each round."""
        assert isinstance(self.model, JointModel)
        start, blocks, predictions = start_of_arrays(arrays), [], []
        target, tempered = DomainTarget(self.model, start.directions), start.tempered
        replicas = tempered.replicas
        for index in range(first, first + rounds):
            key = self.key(chain, index + 1)
            generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
            replicas, rows = sweep(target, tempered.ladder, replicas, key, generator, self.thin)
            accepted = rows.pop("accepted")[:, 1 : int(tempered.ladder.count)]
            rows["acceptance_rate"] = accepted.mean(1)
            rows["order_parameter"] = np.asarray(_order_parameters(self.model, rows["position"]))
            blocks.append(rows)
            predictions.append(self._predictions(jnp.asarray(rows["position"][-1])))
        joined = {name: np.concatenate([rows[name] for rows in blocks]) for name in blocks[0]}
        start = start._replace(tempered=tempered._replace(replicas=replicas))
        return arrays_of_start(start), joined, predictions


def chains_of(study: StoredStudy, point: Point, settings: LearnedAttention) -> AttentionChains:
    """Build the chains of a point of a study by the method of the settings.

    Raises
    ------
    StudyError
        If attention has too many parameters for a mixture, or as :func:`attention_chains` does.
    """
    kind = TemperedChains if settings.is_tempered else AttentionChains
    chains = attention_chains(study, point, settings, kind)
    if settings.is_tempered and chains.model.dimension > LARGEST_DIMENSION:
        raise StudyError(
            f"{study.path} has heads with {chains.attention.dimension} parameters, "
            f"{chains.model.dimension} with those of U, but tempering fits mixtures in at most "
            f"{LARGEST_DIMENSION} dimensions; take --method nuts, or heads of fewer parameters"
        )
    return chains


@jax.jit
def _order_parameters(model: Model, positions: jax.Array) -> jax.Array:
    return jax.lax.map(model.order_parameter, positions)


_PARTS: dict[str, Any] = {"mixture": Mixture, "ladder": Ladder, "replicas": Replicas}


def arrays_of_start(start: Start) -> dict[str, np.ndarray]:
    """Return the state of a chain as named arrays."""
    tempered = start.tempered
    named = {f"direction_{number}": u for number, u in enumerate(start.directions, start=1)}
    for prefix, part in (
        ("mixture", tempered.ladder.mixture),
        ("ladder", tempered.ladder),
        ("replicas", tempered.replicas),
        ("stages", tempered),
    ):
        for name, value in part._asdict().items():
            if name not in _PARTS:
                named[f"{prefix}_{name}"] = value
    return {name: np.asarray(value) for name, value in named.items()}


def start_of_arrays(arrays: State) -> Start:
    """Return the state of the arrays from :func:`arrays_of_start`."""

    def fields(prefix: str, part: Any) -> dict[str, Any]:
        names = (name for name in part._fields if name not in _PARTS)
        return {name: np.asarray(arrays[f"{prefix}_{name}"]) for name in names}

    ladder = Ladder(**fields("ladder", Ladder), mixture=Mixture(**fields("mixture", Mixture)))
    replicas = Replicas(**fields("replicas", Replicas))
    tempered = Tempered(**fields("stages", Tempered), ladder=ladder, replicas=replicas)
    directions, number = [], 1
    while f"direction_{number}" in arrays:
        directions.append(np.asarray(arrays[f"direction_{number}"]))
        number += 1
    return Start(directions, tempered)
