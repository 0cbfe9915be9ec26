import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { type AgentSettings, extensionsFolder } from '../process/settings.ts';
import type { Queryable } from './connect.ts';

/**
 * Extensions that the owner of a branch may create if the operator names them in `EXTENSIONS`, with the reason
 * why the script, which PostgreSQL runs as a superuser, cannot be tricked by what the owner has made before.
 * `refusedStatement` checks the part of the reason that all have in common, for the scripts of this host.
 */
const REVIEWED_EXTENSIONS: Readonly<Record<string, string>> = {
  vector:
    'Its scripts run no function. They create types, functions in C, operators, casts and access methods; each has an argument of a type that the extension itself has just made.',
  bloom:
    'Its script runs no function. It creates an access method, and names built-in types and operators with their exact arguments.',
  moddatetime: 'Its script creates one trigger function in C, which has the rights of its caller.',
};

/** Comments, strings and names in quotes; in the text that is left, a `;` ends a statement. */
const QUOTED = /--[^\n]*|\/\*[\s\S]*?\*\/|'(?:[^']|'')*'|"(?:[^"]|"")*"/g;
/** psql's own lines, which PostgreSQL leaves out too. */
const FOR_PSQL = /^\\echo.*$/gm;
/** Strings that end elsewhere than at the next quote. */
const OTHER_STRINGS = /\$|\b(?:E|U&)'/i;

/** What makes objects and evaluates no expression. */
const CREATES =
  /^(?:create (?:type|operator(?: class| family)?|aggregate|cast|access method) |comment on |alter (?:type|operator) |drop cast )/;
const CREATES_IN_C = /^(?:create (?:or replace )?function .* language (?:c|internal)\b|alter function )/;
const RAISES_RIGHTS = /\b(?:security definer|owner to|set schema)\b/;

/**
 * Finds what an extension's script could be tricked by: a statement that runs a query or a function, or that
 * makes one in another language than C.
 * @returns the beginning of the first such statement; null if there is none
 */
export function refusedStatement(script: string): string | null {
  if (OTHER_STRINGS.test(script.replaceAll(/--[^\n]*/g, '').replaceAll(FOR_PSQL, '')))
    return 'a string in another form than quotes';
  const text = script
    .replaceAll(FOR_PSQL, '')
    .replaceAll(QUOTED, (quoted) => (/^['"]/.test(quoted) ? 'q' : ' '));
  for (const statement of text.split(';')) {
    const words = statement.toLowerCase().trim().replaceAll(/\s+/g, ' ');
    if (words === '') continue;
    if ((CREATES.test(words) || CREATES_IN_C.test(words)) && !RAISES_RIGHTS.test(words)) continue;
    return words.slice(0, 80);
  }
  return null;
}

/** An extension of `EXTENSIONS` that cannot be created, and why. */
export interface RefusedExtension {
  name: string;
  reason: string;
}

interface Copy {
  control: string;
  /** By their file names. */
  scripts: Map<string, string>;
}

/** @throws Error with the reason why the owner of a branch may not create it */
async function copyOf(folder: string, name: string): Promise<Copy> {
  if (!Object.hasOwn(REVIEWED_EXTENSIONS, name))
    throw new Error(`it is not one of the reviewed ones (${Object.keys(REVIEWED_EXTENSIONS).join(', ')})`);
  const files = await readdir(folder);
  if (!files.includes(`${name}.control`)) throw new Error('it is not installed on this host');
  const scripts = new Map<string, string>();
  let refusal: string | null = null;
  for (const file of files.filter((each) => each.startsWith(`${name}--`) && each.endsWith('.sql'))) {
    const script = await readFile(join(folder, file), 'utf8');
    const refused = refusedStatement(script);
    if (refused === null) scripts.set(file, script);
    else refusal = `${file} has a statement that only a superuser should run: ${refused}`;
  }
  const text = await readFile(join(folder, `${name}.control`), 'utf8');
  const version = /^\s*default_version\s*=\s*'([^']+)'/m.exec(text)?.[1];
  // An update path whose script is refused is left out; a version that cannot be made at all is an error.
  if (![...scripts.keys()].some((file) => !/--.*--/.test(file)))
    throw new Error(refusal ?? `there is no script of version ${version}`);
  const control = text.replaceAll(/^\s*(?:trusted|superuser|directory)\s*=.*$/gm, '');
  return { control: `${control.trimEnd()}\nsuperuser = true\ntrusted = true\n`, scripts };
}

/** @returns the extensions of `EXTENSIONS` that owners can create, and those that they cannot */
async function readCopies(settings: AgentSettings, postgres: Queryable) {
  const { rows } = await postgres.query<{ setting: string }>(
    "SELECT setting FROM pg_config WHERE name = 'SHAREDIR'",
  );
  const folder = join(rows[0]?.setting ?? '', 'extension');
  const copies: Copy['scripts'] = new Map();
  const refused: RefusedExtension[] = [];
  for (const name of settings.EXTENSIONS) {
    try {
      const { control, scripts } = await copyOf(folder, name);
      copies.set(`${name}.control`, control);
      for (const [file, script] of scripts) copies.set(file, script);
    } catch (error) {
      refused.push({ name, reason: (error as Error).message });
    }
  }
  return { copies, refused };
}

export const readRefusedExtensions = async (
  settings: AgentSettings,
  postgres: Queryable,
): Promise<RefusedExtension[]> => (await readCopies(settings, postgres)).refused;

/**
 * Writes copies of the control files and scripts of `EXTENSIONS` that are marked as trusted, into the folder
 * that `extension_control_path` names first. Files of others go.
 */
export async function writeExtensions(settings: AgentSettings, postgres: Queryable): Promise<void> {
  const folder = join(extensionsFolder(settings), 'extension');
  const { copies } = await readCopies(settings, postgres);
  await mkdir(folder, { recursive: true, mode: 0o750 });
  for (const [file, text] of copies) {
    const path = join(folder, file);
    if ((await readFile(path, 'utf8').catch(() => null)) === text) continue;
    await writeFile(`${path}.new`, text);
    await rename(`${path}.new`, path);
  }
  for (const file of await readdir(folder)) if (!copies.has(file)) await rm(join(folder, file));
}

/** The extensions of this host, with those that the owner of a branch can create. */
export async function listExtensions(postgres: Queryable): Promise<MethodResult<'host.extensions'>> {
  const { rows } = await postgres.query<MethodResult<'host.extensions'>['extensions'][number]>(
    `SELECT name, default_version, coalesce(comment, '') AS comment,
            bool_or(trusted OR NOT superuser) AS trusted
     FROM pg_available_extension_versions JOIN pg_available_extensions USING (name, comment)
     WHERE version = default_version GROUP BY 1, 2, 3 ORDER BY 1`,
  );
  return { extensions: rows };
}
