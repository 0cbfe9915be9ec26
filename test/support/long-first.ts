import { readFileSync } from 'node:fs';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/**
 * Kinds of files, each with the part of a run that passes before its first file. Files with servers wait and
 * those with workerd do not, so they run side by side. Those that share a stack come later: its agent looks at
 * all projects that they have made until the run ends. Quick files fill the end, where a long one would leave
 * the other workers idle.
 */
const KINDS: [kind: RegExp, start: number][] = [
  [/\/agent\/join\/[^/]*\.test\.ts$|\.pg\.test\.ts$/, 0],
  [/\.worker\.test\.ts$/, 0],
  [/\/(?:(?:faults-|simulation-|planted-fault)[^/]*|dev\/[^/]*)\.e2e\.test\.ts$/, 0],
  [/\.e2e\.test\.ts$/, 0.2],
  [/$/, 1],
];

/** The suites of a folder that a file runs on one host or stack, and other modules next to it. */
const suitesOf = ({ moduleId }: TestSpecification): number =>
  readFileSync(moduleId, 'utf8').match(/ from '\.\//g)?.length ?? 0;

/**
 * Mixes the kinds, the long files of each kind first. A machine that has not run the files yet knows only their
 * sizes, and a file that runs suites is short.
 */
export class LongFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const byKind = Map.groupBy(sorted, ({ moduleId }) => KINDS.findIndex(([kind]) => kind.test(moduleId)));
    const placed = [...byKind].flatMap(([kind, ofKind]) => {
      const start = KINDS[kind]?.[1] ?? 1;
      const longFirst = ofKind.toSorted((one, other) => suitesOf(other) - suitesOf(one));
      return longFirst.map((file, index) => ({ file, place: start + ((1 - start) * index) / ofKind.length }));
    });
    return placed.toSorted((one, other) => one.place - other.place).map(({ file }) => file);
  }
}
