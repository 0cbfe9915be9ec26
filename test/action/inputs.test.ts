import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeEach, expect, test, vi } from 'vitest';
import { readInputs } from '../../action/inputs.ts';
import { defaultInputs } from './runner.ts';

const URL = 'https://api.example.com';
const PROJECT = '3f2b8c1e-6f0a-4c5e-9d61-0c7b3d2f4a10';
const folder = mkdtempSync(join(tmpdir(), 'branchgate-inputs-'));
const event = join(folder, 'event.json');

beforeEach(() => vi.unstubAllEnvs());
afterAll(() => {
  vi.unstubAllEnvs();
  rmSync(folder, { recursive: true });
});

/** The inputs as a runner sets them. */
function given(
  inputs: Record<string, string>,
  payload: object = { action: 'opened', pull_request: { number: 7 } },
) {
  writeFileSync(event, JSON.stringify(payload));
  vi.stubEnv('GITHUB_EVENT_PATH', event);
  for (const [name, value] of Object.entries({ ...defaultInputs(), url: URL, project: PROJECT, ...inputs }))
    vi.stubEnv(`INPUT_${name.toUpperCase()}`, value);
  return readInputs();
}

test('by default, a pull request has a branch of its own for a week', () => {
  expect(given({ url: `${URL}/` })).toMatchObject({
    command: 'create',
    url: URL,
    audience: URL,
    project: PROJECT,
    branch: 'pr-7',
    from: null,
    ttlSeconds: 604_800,
    onExists: 'return',
    allow: ['me'],
    labels: {},
    commentOn: 7,
  });
});

test('docs/ci.md has the inputs of the action in their order', () => {
  const page = readFileSync(join(import.meta.dirname, '../../docs/ci.md'), 'utf8');
  const [, table = ''] = /^\| input \|.*?\n(.*?)\n\n/ms.exec(page) ?? [];
  const rows = [...table.matchAll(/^\| `([\w-]+)` \|/gm)].map(([, name]) => name);
  expect(rows).toEqual(Object.keys(defaultInputs()));
});

test('a closed pull request deletes its branch', () => {
  expect(given({}, { action: 'closed', pull_request: { number: 7 } })).toMatchObject({ command: 'delete' });
  expect(given({ branch: 'nightly' }, { action: 'closed' })).toMatchObject({
    command: 'create',
    commentOn: null,
  });
});

test.each([
  ['words', 'npm run  migrate', ['npm', 'run', 'migrate']],
  ['lines', 'psql\n-c\nselect 1', ['psql', '-c', 'select 1']],
  ['no shell syntax', 'echo $HOME "a b" ; id', ['echo', '$HOME', '"a', 'b"', ';', 'id']],
])('the migration to rehearse, as %s', (_, run, words) => {
  expect(given({ command: 'rehearse', run }, {})).toMatchObject({ command: 'rehearse', run: words });
});

test.each<[string, Record<string, string>, string, object?]>([
  ['main', { branch: 'main' }, 'branch is main'],
  ['an address without TLS', { url: 'http://api.example.com' }, 'https://'],
  ['another choice', { 'on-exists': 'ignore' }, 'return, reset, fail'],
  ['another command', { command: 'drop' }, 'auto, create, delete, rehearse'],
  ['a rehearsal of nothing', { command: 'rehearse' }, 'run is missing'],
  ['a migration that nobody rehearses', { run: 'npm run migrate' }, 'command: rehearse'],
  ['a wrong duration', { ttl: 'forever' }, 'ttl'],
  ['a wrong label', { labels: 'pr=7\nteam' }, 'key=value'],
  ['the name of a project', { project: 'Shop' }, 'not an ID'],
  ['no name for a run without a pull request', {}, 'not of a pull request', { action: 'opened' }],
])('%s is refused', (_, inputs, sentence, payload) => {
  expect(() => given(inputs, payload)).toThrow(sentence);
});
