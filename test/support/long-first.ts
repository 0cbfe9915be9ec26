import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** Files that take minutes. On a machine that has not run them yet, nothing but their names tells. */
const LONG = /\/faults-(?:creation|deletion)\.e2e\.test\.ts$/;

/** Starts them first, so that no worker is left with one at the end while the others have nothing to do. */
export class LongFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    return [true, false].flatMap((isLong) => sorted.filter(({ moduleId }) => LONG.test(moduleId) === isLong));
  }
}
