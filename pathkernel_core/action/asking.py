"""Ask and tell: minimisers that yield questions and are told the answers.

A minimiser is a generator. It yields what it wants evaluated and receives the value, so that one
loop serves a single minimiser or many, whose questions are then answered together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

Question = TypeVar("Question")
Result = TypeVar("Result")


def answer_all(
    minimisers: Sequence[Generator[Question, Any, Result]],
    answer: Callable[[list[Question]], Sequence[Any]],
) -> list[Result]:
    """Run minimisers side by side, and return their results.

    Parameters
    ----------
    minimisers : sequence of generators
        They yield questions, receive answers, and return results.
    answer : callable
        Answers of a list of questions, one of each minimiser that has not ended. One that
        is an exception is raised inside the minimiser that asked.
    """
    results: dict[int, Result] = {}
    questions: dict[int, Question] = {}

    def ask(index: int, told: Any) -> None:
        minimiser = minimisers[index]
        try:
            if isinstance(told, Exception):
                questions[index] = minimiser.throw(told)
            else:
                questions[index] = minimiser.send(told)
        except StopIteration as ended:
            results[index] = ended.value
            questions.pop(index, None)

    for index in range(len(minimisers)):
        ask(index, None)
    while questions:
        asking = list(questions)
        for index, told in zip(asking, answer([questions[index] for index in asking])):
            ask(index, told)
    return [results[index] for index in range(len(minimisers))]
