import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { IS_NIGHTLY } from '../nightly.ts';
import { type Attack, REVOCATIONS, type Revocation, type Volume } from './attack.ts';
import { ATTACKS, type AttackName } from './attacks.ts';
import { type Outcome, Stage, type StageOptions, TIMES_IDLE } from './stage.ts';

const REVOKED_WITHIN_MS = 5_000;
/** The server looks for lost clients every 10 s. */
const GONE_WITHIN_MS = 13_000;
const TEST_WITHIN_MS = 240_000;

/** Each attack next to a victim, on one stack. @param afterwards what else must hold when the attack is over */
export function describeAttacks(
  names: AttackName[],
  options: () => StageOptions = () => ({}),
  afterwards: (name: AttackName, stage: Stage) => Promise<void> = async () => {},
): void {
  let stage: Stage;
  beforeAll(async () => {
    stage = await Stage.start(options());
  });
  afterAll(() => stage?.stop());

  describe.each(names)('%s', (name) => {
    const attack: Attack = ATTACKS[name];
    const who = `row ${attack.row}, by ${attack.member ?? attack.login ?? 'a client without a login'}`;
    // By night, each attack meets each way to revoke its access.
    const revocations: (Revocation | 'nothing')[] =
      IS_NIGHTLY && attack.revocation && !attack.isByApi
        ? [...REVOCATIONS]
        : [attack.revocation ?? 'nothing'];
    test.each(revocations)(
      `${who}, revoked by %s: the victim notices nothing`,
      async (revocation) => {
        const outcome = await stage.run(name, revocation === 'nothing' ? null : revocation);
        console.log(`${name}: ${JSON.stringify(outcome)}`);
        // All in one comparison, so that a failure shows everything that was wrong.
        expect(shortcomings(attack, outcome)).toEqual([]);
        await afterwards(name, stage);
      },
      TEST_WITHIN_MS,
    );
  });
}

/** What the attack did that it must not be able to do, one line each. */
function shortcomings(attack: Attack, outcome: Outcome): string[] {
  const { idle, during, branchMs, rotationMs, revokedMs, goneMs, growth, counts } = outcome;
  /** A bound that holds on a machine that is not busy, and what others leave of one that is. */
  const isWithin = (value: number | string | null, bound: number) =>
    typeof value === 'number' && value <= Math.max(bound, TIMES_IDLE * (Number(idle.rotationMs) || 0));
  const found: string[] = Object.entries(during.failures).map(([why, n]) => `victim, ${why} (${n} times)`);
  if (Object.keys(idle.failures).length > 0) found.push(`victim, idle: ${JSON.stringify(idle.failures)}`);
  if (typeof branchMs === 'string') found.push(`victim, branch: ${branchMs}`);
  if (typeof rotationMs === 'string') found.push(`victim, rotation: ${rotationMs}`);
  if (attack.rotationWithinMs && !isWithin(rotationMs, attack.rotationWithinMs)) {
    found.push(`victim, rotation: ${ms(rotationMs)}, idle ${ms(idle.rotationMs)}`);
  }
  // A ratio of two latencies means nothing where other test files run at the same time.
  if (IS_NIGHTLY && attack.boundsLatency && during.p99 > TIMES_IDLE * idle.p99) {
    found.push(`victim, 99th percentile: ${ms(during.p99)}, idle ${ms(idle.p99)}`);
  }
  if (attack.revocation && !isWithin(revokedMs, REVOKED_WITHIN_MS))
    found.push(`revocation: ${ms(revokedMs)}, another tenant's idle rotation ${ms(idle.rotationMs)}`);
  if (attack.blockedFor && outcome.blockedFor !== attack.blockedFor)
    found.push(`blocked: ${outcome.blockedFor}`);
  if (attack.blockedFor && !outcome.isCutOff) found.push('the sessions of the attacker were not ended');
  if (goneMs === null || goneMs > GONE_WITHIN_MS) found.push(`sessions without a client: ${ms(goneMs)}`);
  for (const [volume, bytes] of Object.entries(attack.growth ?? {})) {
    const grown = growth[volume as Volume];
    if (grown > bytes) found.push(`${volume}: ${Math.round(grown / 2 ** 20)} MiB`);
  }
  for (const [name, most] of Object.entries(attack.most ?? {})) {
    if ((counts[name] ?? 0) > most) found.push(`${name}: ${counts[name]}`);
  }
  for (const [name, least] of Object.entries(attack.least ?? {})) {
    if ((counts[name] ?? 0) < least) found.push(`the attack did too little, ${name}: ${counts[name] ?? 0}`);
  }
  if (counts['ended without a report'] || counts['no report'] || counts.unhandled) {
    found.push(`the attack itself failed: ${JSON.stringify(counts)}`);
  }
  return found;
}

const ms = (value: number | string | null) =>
  typeof value === 'number' ? `${Math.round(value)} ms` : String(value ?? 'never');
