import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { PREVIOUS_VERSION } from '../../shared/protocol/version.ts';
import { hasRelease, releaseFaults, releaseState, stateOfRelease } from '../support/released.ts';

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');

test.runIf(hasRelease())('the changelog, the version, the released commit and the link agree', () => {
  expect(releaseFaults(read('CHANGELOG.md'), releaseState(read), stateOfRelease(), PREVIOUS_VERSION)).toEqual(
    [],
  );
});

const CHANGELOG = '# Changelog\n\n## [Unreleased]\n\n## [1.1.0] - 2027-01-31\n\n## [1.0.0] - 2026-11-25\n';
const RELEASED = { packageVersion: '1.1.0', protocol: 5, hashes: { 4: 'a', 5: 'b' } };
const PRESENT = { packageVersion: '1.1.0', protocol: 6, hashes: { 4: 'a', 5: 'b', 6: 'c' } };

test('each contradiction about a release is found', () => {
  const faults = (present: object, released: object = {}, previous = 5, changelog = CHANGELOG) =>
    releaseFaults(changelog, { ...PRESENT, ...present }, { ...RELEASED, ...released }, previous).join();
  expect(faults({})).toBe('');
  expect(faults({ packageVersion: '1.2.0' })).toContain('CHANGELOG.md has 1.1.0');
  expect(faults({}, { packageVersion: '1.0.0' })).toContain('calls 1.1.0 released');
  expect(faults({}, {}, 4)).toContain('PREVIOUS_VERSION is 4');
  expect(faults({ hashes: { 4: 'a', 5: 'x', 6: 'c' } })).toContain('version 5 of the link was edited');
  expect(faults({ protocol: 7 })).toContain('version 7 of the link has no hash');
  // Not before it has a date.
  const coming = CHANGELOG.replace('2027-01-31', 'unreleased');
  expect(faults({}, { packageVersion: '1.0.0' }, 5, coming)).toBe('');
});
