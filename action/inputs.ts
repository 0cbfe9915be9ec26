import { readFileSync } from 'node:fs';
import { getInput, getMultilineInput } from '@actions/core';
import { safeAddress } from '../client/gateway-address.ts';
import { secondsOf } from '../shared/duration.ts';
import { BRANCH_DATA, type BranchData } from '../shared/masking.ts';

/** A run that cannot go on: what is wrong, then what to do. */
export class ActionError extends Error {
  override readonly name = 'ActionError';
}

/** The parts of a webhook's payload that the action reads. */
interface Event {
  action?: string;
  pull_request?: { number: number; merged?: boolean };
}

export type OnExists = 'fail' | 'return' | 'reset';

const COMMANDS = ['create', 'delete', 'rehearse', 'check-masking', 'propose', 'apply'] as const;
export type Command = (typeof COMMANDS)[number];

export interface Inputs {
  command: Command;
  url: string;
  project: string;
  audience: string;
  branch: string;
  from: string | null;
  data: BranchData;
  ttlSeconds: number;
  onExists: OnExists;
  allow: string[];
  labels: Record<string, string>;
  /** The migration to rehearse: a program and its arguments. Empty for other commands. */
  run: string[];
  /** A file with the masking policy to compare; null: that of the project. */
  maskingFile: string | null;
  /** Whether a policy is compared with the branch. */
  checksMasking: boolean;
  /** A file with the statements of the change; null: those of the schema difference. */
  sqlFile: string | null;
  /** The pull request was closed without a merge. */
  isUnmerged: boolean;
  /** Number of the pull request that gets a comment; null if none does. */
  commentOn: number | null;
  githubToken: string;
}

function readEvent(): Event {
  const path = process.env.GITHUB_EVENT_PATH;
  return path ? (JSON.parse(readFileSync(path, 'utf8')) as Event) : {};
}

function oneOf<T extends string>(name: string, choices: readonly T[]): T {
  const value = getInput(name);
  const found = choices.find((choice) => choice === value);
  if (found === undefined) throw new ActionError(`${name} is ${value}. Give one of ${choices.join(', ')}.`);
  return found;
}

function readLabels(): Record<string, string> {
  const pairs = getMultilineInput('labels').map((line) => {
    const [, key, value] = /^([^=]+)=(.*)$/.exec(line) ?? [];
    if (key === undefined || value === undefined)
      throw new ActionError(`labels has ${line}. Give key=value.`);
    return [key, value] as const;
  });
  return Object.fromEntries(pairs);
}

/**
 * A program and its arguments. There is no shell, which would read variables and quotes in it.
 * @throws ActionError
 */
function readRun(command: Command): string[] {
  const lines = getMultilineInput('run');
  const [line = '', ...others] = lines;
  if (command !== 'rehearse' && line !== '')
    throw new ActionError('run is for the command rehearse only. Give `command: rehearse`.');
  if (command === 'rehearse' && line === '')
    throw new ActionError('run is missing. Give the migration to rehearse, for instance npm run migrate.');
  return others.length > 0 ? lines : line.split(/\s+/).filter(Boolean);
}

const PROJECT_POLICY = 'project';

/** @throws ActionError */
function readMasking(command: Command): Pick<Inputs, 'maskingFile' | 'checksMasking'> {
  const given = getInput('masking');
  if (given !== '' && command !== 'check-masking' && command !== 'rehearse')
    throw new ActionError('masking is for the commands check-masking and rehearse only.');
  return {
    maskingFile: given === '' || given === PROJECT_POLICY ? null : given,
    checksMasking: command === 'check-masking' || given !== '',
  };
}

/** @throws ActionError */
function readSqlFile(command: Command): string | null {
  const given = getInput('sql');
  if (given !== '' && command !== 'propose')
    throw new ActionError('sql is for the command propose only. Give `command: propose`.');
  return given || null;
}

const PROJECT_ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** @throws ActionError */
export function readInputs(): Inputs {
  const event = readEvent();
  const number = event.pull_request?.number ?? null;
  const isClosed = event.pull_request !== undefined && event.action === 'closed';
  const chosen = oneOf('command', ['auto', ...COMMANDS]);
  const command = chosen === 'auto' ? (isClosed ? 'delete' : 'create') : chosen;
  const url = safeAddress(getInput('url'));
  if (url === null)
    throw new ActionError('url is not the address of a gateway. Give one that begins with https://.');
  const project = getInput('project', { required: true });
  if (!PROJECT_ID.test(project))
    throw new ActionError('project is not an ID. `branchgate project list` shows it.');
  const branch = getInput('branch') || (number === null ? '' : `pr-${number}`);
  // A rehearsal has a branch of its own.
  if (branch === '' && command !== 'rehearse')
    throw new ActionError('This run is not of a pull request. Give the name of a branch.');
  // With `return`, the action would hand out the project's own data.
  if (branch === 'main')
    throw new ActionError('branch is main, which is no branch for a run. Give another name.');
  const ttlSeconds = secondsOf(getInput('ttl'));
  if (ttlSeconds === null) throw new ActionError('ttl is no duration. Give one such as 2h or 7d.');
  return {
    command,
    url,
    project,
    audience: getInput('audience') || url,
    branch,
    from: getInput('from') || null,
    data: oneOf('data', BRANCH_DATA),
    ttlSeconds,
    onExists: oneOf('on-exists', ['return', 'reset', 'fail']),
    allow: getMultilineInput('allow'),
    labels: readLabels(),
    run: readRun(command),
    ...readMasking(command),
    sqlFile: readSqlFile(command),
    isUnmerged: isClosed && event.pull_request?.merged === false,
    commentOn: oneOf('comment', ['true', 'false']) === 'true' ? number : null,
    githubToken: getInput('github-token'),
  };
}
