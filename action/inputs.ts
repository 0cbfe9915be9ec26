import { readFileSync } from 'node:fs';
import { getInput, getMultilineInput } from '@actions/core';
import { safeAddress } from '../client/gateway-address.ts';
import { secondsOf } from '../shared/duration.ts';

/** A run that cannot go on: what is wrong, then what to do. */
export class ActionError extends Error {
  override readonly name = 'ActionError';
}

/** The parts of a webhook's payload that the action reads. */
interface Event {
  action?: string;
  pull_request?: { number: number };
}

export type OnExists = 'fail' | 'return' | 'reset';

export interface Inputs {
  command: 'create' | 'delete';
  url: string;
  project: string;
  audience: string;
  branch: string;
  from: string | null;
  ttlSeconds: number;
  onExists: OnExists;
  allow: string[];
  labels: Record<string, string>;
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

const PROJECT_ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** @throws ActionError */
export function readInputs(): Inputs {
  const event = readEvent();
  const number = event.pull_request?.number ?? null;
  const command = oneOf('command', ['auto', 'create', 'delete']);
  const url = safeAddress(getInput('url'));
  if (url === null)
    throw new ActionError('url is not the address of a gateway. Give one that begins with https://.');
  const project = getInput('project', { required: true });
  if (!PROJECT_ID.test(project))
    throw new ActionError('project is not an ID. `branchgate project list` shows it.');
  const branch = getInput('branch') || (number === null ? '' : `pr-${number}`);
  if (branch === '') throw new ActionError('This run is not of a pull request. Give the name of a branch.');
  // With `return`, the action would hand out the project's own data.
  if (branch === 'main')
    throw new ActionError('branch is main, which is no branch for a run. Give another name.');
  const ttlSeconds = secondsOf(getInput('ttl'));
  if (ttlSeconds === null) throw new ActionError('ttl is no duration. Give one such as 2h or 7d.');
  const isClosed = event.pull_request !== undefined && event.action === 'closed';
  return {
    command: command === 'auto' ? (isClosed ? 'delete' : 'create') : command,
    url,
    project,
    audience: getInput('audience') || url,
    branch,
    from: getInput('from') || null,
    ttlSeconds,
    onExists: oneOf('on-exists', ['return', 'reset', 'fail']),
    allow: getMultilineInput('allow'),
    labels: readLabels(),
    commentOn: oneOf('comment', ['true', 'false']) === 'true' ? number : null,
    githubToken: getInput('github-token'),
  };
}
