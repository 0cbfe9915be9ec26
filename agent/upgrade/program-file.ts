import { createHash } from 'node:crypto';
import { readFileSync, realpathSync } from 'node:fs';
import { join, parse } from 'node:path';

/** The program that runs this command. */
export const installedProgram = (): string => realpathSync(process.argv[1] ?? '');

/** Files next to the installed program, with its extension, so that Node can run them. */
export const siblingOf = (program: string, kind: 'new' | 'previous'): string => {
  const { dir, name, ext } = parse(program);
  return join(dir, `${name}.${kind}${ext}`);
};

export const sha256Of = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

export const sha256OfFile = (path: string): string => sha256Of(readFileSync(path));

/** What an upgrade of the program claims. Releases must not change it, as two upgrades can be by different ones. */
export const upgradeName = (program: string): string =>
  `branchgate-upgrade-${sha256Of(Buffer.from(program))}`;
