/** The result of one case in every round: milliseconds, or a count. */
export type Samples<Case extends string> = Record<Case, number[]>;

/** Further values that cases record in addition to their samples: row → values. */
export type Series = Record<string, number[]>;

export function addSample(series: Series, row: string, value: number): void {
  series[row] ??= [];
  series[row].push(value);
}

/**
 * Runs the cases interleaved, so that other load on the machine affects all of them alike. Every other round
 * runs backwards, so that the after-effects of a case do too. A first round warms up and is discarded.
 * @param cases what is measured; each receives its name and returns its result
 * @param series whose values of the first round are discarded as well
 */
export async function runInterleaved<Case extends string>(
  rounds: number,
  cases: Record<Case, (name: NoInfer<Case>) => Promise<number>>,
  ...series: Series[]
): Promise<Samples<Case>> {
  const names = Object.keys(cases) as Case[];
  const samples = Object.fromEntries(names.map((name) => [name, [] as number[]])) as Samples<Case>;
  for (let round = 0; round <= rounds; round++) {
    for (const name of round % 2 === 0 ? names : names.toReversed()) {
      samples[name].push(await cases[name](name));
    }
    if (round === 0)
      for (const values of [samples, ...series].flatMap(Object.values<number[]>)) values.length = 0;
  }
  return samples;
}

/** @returns the duration of `action` in milliseconds */
export async function timed(action: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await action();
  return performance.now() - start;
}

/** The median; of an even number of values, the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.slice(Math.ceil(sorted.length / 2) - 1, Math.floor(sorted.length / 2) + 1);
  return middle.reduce((sum, value) => sum + value, 0) / middle.length;
}

/** The median of the differences in each round. */
export const medianDifference = (ones: readonly number[], others: readonly number[]): number =>
  median(ones.map((one, round) => one - (others[round] ?? Number.NaN)));

/**
 * The median of the ratios in each round. Suited to values that drift from round to round, where the medians
 * of the two sides may come from different rounds.
 */
export const medianRatio = (ones: readonly number[], others: readonly number[]): number =>
  median(ones.map((one, round) => one / (others[round] ?? Number.NaN)));
