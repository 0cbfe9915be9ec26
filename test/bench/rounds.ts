/** What one case came to in every round: milliseconds, or whatever it counts. */
export type Samples<Case extends string> = Record<Case, number[]>;

/** What cases note beside their samples: row → values. */
export type Series = Record<string, number[]>;

export function addSample(notes: Series, row: string, value: number): void {
  notes[row] ??= [];
  notes[row].push(value);
}

/**
 * Runs the cases by turns, so that whatever else happens on the machine meets all of them alike; every other round
 * backwards, so that what one leaves to the next does too. A first round, which is not kept, warms everything up.
 * @param cases what is measured; each is told its name, and says itself what it came to
 * @param notes what the first round noted there is forgotten as well
 */
export async function runInterleaved<Case extends string>(
  rounds: number,
  cases: Record<Case, (name: NoInfer<Case>) => Promise<number>>,
  ...notes: Series[]
): Promise<Samples<Case>> {
  const names = Object.keys(cases) as Case[];
  const samples = Object.fromEntries(names.map((name) => [name, [] as number[]])) as Samples<Case>;
  for (let round = 0; round <= rounds; round++) {
    for (const name of round % 2 === 0 ? names : names.toReversed()) {
      samples[name].push(await cases[name](name));
    }
    if (round === 0)
      for (const noted of [samples, ...notes].flatMap(Object.values<number[]>)) noted.length = 0;
  }
  return samples;
}

/** How long `action` takes, in milliseconds. */
export async function timed(action: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await action();
  return performance.now() - start;
}

/** The middle value; of an even number of values, the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.slice(Math.ceil(sorted.length / 2) - 1, Math.floor(sorted.length / 2) + 1);
  return middle.reduce((sum, value) => sum + value, 0) / middle.length;
}

/** The middle one of the differences in each round. */
export const medianDifference = (ones: readonly number[], others: readonly number[]): number =>
  median(ones.map((one, round) => one - (others[round] ?? Number.NaN)));

/**
 * The middle one of the ratios in each round. For what drifts from round to round: the medians of the two sides may be of
 * different rounds then.
 */
export const medianRatio = (ones: readonly number[], others: readonly number[]): number =>
  median(ones.map((one, round) => one / (others[round] ?? Number.NaN)));
