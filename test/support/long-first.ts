import { BaseSequencer, type TestSpecification } from 'vitest/node';

/**
 * Kinds of files, in their order. Those that share a stack come late: its agent looks at all projects that they
 * have made until the run ends. A machine that has not run the files yet knows only their names.
 */
const KINDS = [
  /\/agent\/join\/[^/]*\.test\.ts$/,
  /\.pg\.test\.ts$/,
  /\.worker\.test\.ts$/,
  /\/(?:faults-|simulation-|planted-fault)[^/]*\.e2e\.test\.ts$/,
  /\/dev\/[^/]*\.e2e\.test\.ts$/,
  /\.e2e\.test\.ts$/,
];

const kindOf = ({ moduleId }: TestSpecification): number => {
  const found = KINDS.findIndex((kind) => kind.test(moduleId));
  return found < 0 ? KINDS.length : found;
};

/**
 * Starts the long files of a kind first, and quick files last, so that the run does not end with one long file
 * while the other workers are idle.
 */
export class LongFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    return sorted.sort((one, other) => kindOf(one) - kindOf(other));
  }
}
