import manifest from '../package.json' with { type: 'json' };

/** Version of this release, which gateway, agent and command line have in common. */
export const VERSION: string = manifest.version;

/** Of a release, without what SemVer allows after a hyphen or a plus. */
const numbersOf = (version: string) => version.split(/[-+]/, 1).join('').split('.').map(Number);

/** Whether a release precedes another one (semver.org, point 11). Pre-releases are not compared. */
export function isOlder(version: string, other: string): boolean {
  const numbers = numbersOf(version);
  const others = numbersOf(other);
  const index = others.findIndex((number, place) => number !== numbers[place]);
  return index >= 0 && (numbers[index] ?? 0) < (others[index] ?? 0);
}
