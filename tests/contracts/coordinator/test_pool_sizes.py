"""The pool at the coordinator, on each store: trials with several slots."""

from __future__ import annotations

from everstep.coordinator.pool.pool import Pool
from lab.pool_puppets import Perform, PuppetAgent, Stage, candidate, until


def test_a_trial_grows_to_all_free_slots_and_shrinks_by_one_for_another_experiment(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, most=3)}
        a, b = PuppetAgent(stage.pool, num_slots=2), PuppetAgent(stage.pool, "b")
        await b.report()
        given = [*await a.begin(2), *await b.begin(1)]
        assert {each.trial for each in given} == {1} and len({each.number for each in given}) == 3
        assert stage.pool.holds(1, 1) == 3

        stage.trials.wanting[2] = candidate(2, experiment=2)
        stage.pool.note_change()
        agents = {"a": a, "b": b}
        await until(lambda: any(each.state == "parking" for each in stage.pool._book.kept.values()))  # stored
        ends = {name: (await agent.report()).end for name, agent in agents.items()}
        ((giver, (end,)),) = [(name, found) for name, found in ends.items() if found]
        assert end.how == "park" and stage.trials.shrinking == [1] and not stage.trials.parking
        assert stage.pool.is_shrinking(1, 1)
        running = [each.trial for agent in agents.values() for each in (await agent.report()).run]
        assert running == [1, 1], "its slot is not free yet"
        agents[giver].end(end.number, 143, was_asked=True)
        orders = await agents[giver].until(lambda orders: any(each.trial == 2 for each in orders.run))
        assert max(each.number for each in orders.run) > max(each.number for each in given)
        rest = sorted(each.number for each in given if each.number != end.number)
        assert (stage.trials.others, stage.pool.holds(1, 1)) == ([rest], 2)
        assert not stage.pool.is_shrinking(1, 1)

    perform(story)


def test_several_slots_of_a_trial_survive_a_restart_and_end_one_by_one(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, most=3)}
        agent = PuppetAgent(stage.pool, num_slots=3)
        numbers = sorted(each.number for each in await agent.begin(3))
        await stage.restart()
        agent.pool = stage.pool
        assert stage.pool.holds(1, 1) == 3
        assert sorted(each.number for each in (await agent.report()).run) == numbers
        stage.trials.wanting.clear()
        for ended in (numbers[2], numbers[0], numbers[1]):
            agent.end(ended)
            await agent.until(lambda _, ended=ended: ended not in agent.states)  # type: ignore[misc]
        assert [number for _, number, _ in stage.trials.ends] == [numbers[2], numbers[0], numbers[1]]
        assert stage.trials.others == [numbers[:2], [numbers[1]], []]
        assert stage.pool.holds(1, 1) == 0

    perform(story)


def num_decisions(pool: Pool) -> int:
    return sum(pool.decider.measures.decisions.counts)


def test_after_a_restart_nothing_is_taken_back_before_all_nodes_with_slots_have_reported(
    perform: Perform,
) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, most=3)}
        a, b = PuppetAgent(stage.pool, num_slots=2), PuppetAgent(stage.pool, "b")
        await b.report()
        given = [*await a.begin(2), *await b.begin(1)]
        await stage.stop()
        stage.trials.wanting[2] = candidate(2, experiment=2)
        await stage.start()
        a.pool = b.pool = stage.pool
        await a.report()
        for _ in range(2):  # the first may have begun before the report
            number = num_decisions(stage.pool)
            stage.pool.note_change()
            await until(lambda number=number: num_decisions(stage.pool) > number)  # type: ignore[misc]
        assert (await a.report()).end == [], "b may have free slots, or other trials"
        assert stage.pool.holds(1, 1) == len(given) == 3 and not stage.pool.is_shrinking(1, 1)

        await b.report()
        await until(lambda: any(each.state == "parking" for each in stage.pool._book.kept.values()))
        ends = [*(await a.report()).end, *(await b.report()).end]
        assert len(ends) == 1, "all facts are known: one slot is enough for the other trial"

    perform(story)


def test_a_slot_that_a_trial_no_longer_wants_is_taken_back_and_the_others_stay(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, most=1)}
        agent = PuppetAgent(stage.pool, num_slots=2)
        (first,) = await agent.begin(1)
        stage.trials.refused = range(first.number + 1, 1 << 40)
        stage.trials.wanting = {1: candidate(1, most=2)}
        stage.pool.note_change()
        await until(lambda: stage.trials.ends)
        stage.trials.wanting = {1: candidate(1, most=1)}
        _, number, end = stage.trials.ends[0]
        assert (number, end.is_lost, stage.trials.others[0]) == (first.number + 1, True, [first.number])
        orders = await agent.until(lambda _: stage.pool.holds(1, 1) == 1)
        assert [each.number for each in orders.run] == [first.number] and not orders.end

    perform(story)


def test_a_gang_gets_all_of_its_slots_at_once_or_none(perform: Perform) -> None:
    async def story(stage: Stage) -> None:
        stage.trials.wanting = {1: candidate(1, least=2, most=2)}
        agent = PuppetAgent(stage.pool, num_slots=1)
        await agent.report()
        await agent.report(0.2)
        assert stage.pool.holds(1, 1) == 0
        other = PuppetAgent(stage.pool, "b")
        await other.report()
        numbers = {(await agent.begin(1))[0].number, (await other.begin(1))[0].number}
        assert len(numbers) == 2 and stage.pool.holds(1, 1) == 2

    perform(story)
