import type { Schedule } from './schedule.ts';

/**
 * Yields every schedule without one part of this one: a user, a fault, a strike, a group, an operation. Large
 * parts first.
 */
function* smaller(schedule: Schedule): Generator<Schedule> {
  const { actors, faults } = schedule;
  for (const actor of actors) yield { ...schedule, actors: actors.filter((other) => other !== actor) };
  for (const fault of faults) yield { ...schedule, faults: faults.filter((other) => other !== fault) };
  for (const fault of faults) {
    if (fault.strikes.length === 1) continue;
    for (const strike of fault.strikes) {
      const strikes = fault.strikes.filter((other) => other !== strike);
      yield { ...schedule, faults: replaced(faults, fault, { ...fault, strikes }) };
    }
  }
  for (const actor of actors) {
    for (const group of actor.groups.toReversed()) {
      const groups = actor.groups.filter((other) => other !== group);
      yield { ...schedule, actors: replaced(actors, actor, { ...actor, groups }) };
    }
    for (const group of actor.groups.filter(({ length }) => length > 1)) {
      for (const operation of group) {
        const rest = group.filter((other) => other !== operation);
        const groups = replaced(actor.groups, group, rest);
        yield { ...schedule, actors: replaced(actors, actor, { ...actor, groups }) };
      }
    }
  }
}

const replaced = <T>(items: T[], item: T, by: T): T[] => items.map((other) => (other === item ? by : other));

/**
 * Removes parts of a schedule while it still fails.
 * @param fails runs a schedule; called `tries` times at most
 * @returns the smallest one that failed
 */
export async function shrink(
  schedule: Schedule,
  fails: (smaller: Schedule) => Promise<boolean>,
  tries: number,
): Promise<Schedule> {
  let smallest = schedule;
  let left = tries;
  for (let progressed = true; progressed; ) {
    progressed = false;
    for (const candidate of smaller(smallest)) {
      if (left-- <= 0) return smallest;
      if (!(await fails(candidate))) continue;
      smallest = candidate;
      progressed = true;
      break;
    }
  }
  return smallest;
}
