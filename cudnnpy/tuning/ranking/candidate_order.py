"""The order of candidates by predicted times: of all of them, and of the ones that autotune measures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.chooser import Chooser, distinct
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem, is_strict
from cudnnpy.graph.graph_facts import attention_sizes
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.tuning.ranking import model as ranking
from cudnnpy.tuning.ranking.attention_order import attention_order
from cudnnpy.tuning.ranking.convolution_features import features, kind_number


def ranked_candidates(problem: Problem, options: PlanningOptions, target: Target) -> Iterable[Candidate]:
    """Return the candidates of a convolution by their predicted times, and of attention by its order.

    Without a model for the GPU and release, and for other problems, they are the proposals of the heuristics.
    """
    if isinstance(problem, GraphProblem) and attention_sizes(problem.graph) and ranking.model_for(target) is not None:
        return attention_order(problem, target)
    if isinstance(problem, ConvolutionProblem) and (model := ranking.model_for(target)) is not None:
        strict = is_strict(problem, options)
        known = features(problem, strict)
        if known is not None:
            kind = kind_number(problem, strict)
            return ranking.ranked(model, known, kind, problem.ordered_lowerings(), target, strict)
    return problem.proposed_candidates(target)


class RankedChooser(Chooser):
    """Orders candidates by predicted times."""

    def proposed(self) -> Iterable[Candidate]:
        """Return the ranked candidates."""
        return ranked_candidates(self.request.problem, self.request.options, self.request.target)


def tuning_order(problem: Problem, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
    """Yield the candidates that autotune measures. The caller measures each before it takes the next.

    The first one that can be used is the default choice. Where a ranking model orders the candidates (Candidate.expected), the
    engines that it does not rank come only with `options.thorough`, or if no candidate could be used. C functions come only
    if none could.
    """
    is_ranked = has_guess = False

    def all_candidates() -> Iterator[Candidate]:
        yield from ranked_candidates(problem, options, target)
        if options.thorough or not (is_ranked and has_guess):
            yield from problem.engines(target)
        if not has_guess:
            yield from problem.functions(options, target)

    for candidate in distinct(all_candidates()):
        yield candidate
        is_ranked = is_ranked or candidate.expected is not None
        has_guess = has_guess or not candidate.rejection_reason
