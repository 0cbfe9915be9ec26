import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import {
  appendFileSync,
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { Command, InvalidArgumentError } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf, ResponseError } from '../../client/response-error.ts';
import { verifiedUrl } from '../../shared/branch/verified-url.ts';
import { CommandError, explain } from '../exit-codes.ts';
import { exitWith } from '../exit-status.ts';
import {
  branchOf,
  checkedOut,
  type GitLink,
  git,
  gitPath,
  readGitLink,
  removeEnvironmentFile,
  slugOf,
  worktreeRoot,
  writeEnvironmentFile,
  writeGitLink,
} from '../git.ts';
import { findLink } from '../link.ts';
import { ME, withOtherAddress } from '../other-address.ts';
import { printRecords, printText, say } from '../output.ts';
import { openSession, projectOf } from '../session.ts';
import { confirm } from '../terminal.ts';
import { credentialsOf, variablesOf } from './connections.ts';

const BRANCHES = '/api/v1/projects/{project_id}/branches';
const BRANCH = `${BRANCHES}/{branch_ref}` as const;

const FILE = '.env.branchgate';
/** A branch ends this long after its last checkout. */
const TTL_SECONDS = 7 * 86_400;
/** A git command waits this long for its hook, counted from the start of the program. */
const HOOK_WAIT_MS = 2_700;
const LABEL_BYTES_MAX = 63;

const CHECKOUTS = ['post-checkout', 'post-merge'] as const;
const PRE_PUSH = 'pre-push';
const HOOKS = [...CHECKOUTS, PRE_PUSH] as const;
const MARK = '# Written by `branchgate git install`; `branchgate git uninstall` restores what was here.';
const keptName = (path: string) => `${path}.before-branchgate`;

const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;

/** The command that a hook runs: this program, where it was when the hook was installed. */
const hookLine = (name: string) => {
  const [program = '', file = ''] = process.argv;
  return `${quoted(program)} ${quoted(file)} git _hook ${name} "$@"`;
};

/** The hook that was there runs first, with the same input, and its exit code is that of the hook. */
const hookScript = (name: string) => `#!/bin/sh
${MARK}
kept="$(dirname "$0")/${keptName(name)}"
${
  name === PRE_PUSH
    ? `pushed="$(cat)"
if [ -x "$kept" ]; then printf '%s\\n' "$pushed" | "$kept" "$@" || exit $?; fi
exec ${hookLine(name)} </dev/null`
    : `status=0
if [ -x "$kept" ]; then "$kept" "$@" || status=$?; fi
${hookLine(name)} || true
exit $status`
}
`;

function installHook(folder: string, name: string): void {
  const path = join(folder, name);
  mkdirSync(folder, { recursive: true });
  if (existsSync(path) && !readFileSync(path, 'utf8').includes(MARK)) {
    if (existsSync(keptName(path)))
      throw new CommandError(
        'usage',
        `${keptName(path)} is there already. Merge it into ${path}, and remove it.`,
      );
    renameSync(path, keptName(path));
  }
  writeFileSync(path, hookScript(name));
  chmodSync(path, 0o755);
}

function uninstallHook(folder: string, name: string): boolean {
  const path = join(folder, name);
  if (!existsSync(path) || !readFileSync(path, 'utf8').includes(MARK)) return false;
  rmSync(path);
  if (existsSync(keptName(path))) renameSync(keptName(path), path);
  return true;
}

function readFileName(text: string): string {
  if (/^[\w.-]+$/.test(text) && !/^\.{1,2}$|^\.git$/.test(text)) return text;
  throw new InvalidArgumentError('Give the name of a file at the root of the worktree.');
}

interface InstallOptions {
  file: string;
  prePush?: string;
}

const install = () =>
  new Command('install')
    .description('Give each git branch and worktree a branch of its own, by hooks of this repository')
    .option('--file <name>', 'the file that gets DATABASE_URL and DIRECT_URL', readFileName, FILE)
    .option(
      '--pre-push <command>',
      'a migration that is rehearsed before each push, and stops it if it is dangerous',
    )
    .addHelpText(
      'after',
      `
A checkout of feature/x makes or finds a branch for it and writes its URLs into the file, which git ignores. On git's
default branch there is no file. Git never waits longer than 3 s. Hooks that exist are kept, and run first.`,
    )
    .action(async ({ file, prePush }: InstallOptions, command: Command) => {
      worktreeRoot();
      const session = openSession(command);
      const project = await projectOf(command, session);
      const clone = readGitLink()?.clone ?? randomUUID();
      writeGitLink({ url: session.url, project, file, clone });
      if (prePush === undefined) git('config', '--local', '--unset', 'branchgate.prepush');
      else git('config', '--local', 'branchgate.prepush', prePush);
      const exclude = gitPath('info/exclude');
      const ignored = existsSync(exclude) ? readFileSync(exclude, 'utf8') : '';
      mkdirSync(dirname(exclude), { recursive: true });
      if (!ignored.split('\n').includes(`/${file}`))
        appendFileSync(exclude, `${ignored === '' || ignored.endsWith('\n') ? '' : '\n'}/${file}\n`);
      const names = prePush === undefined ? CHECKOUTS : HOOKS;
      const folder = gitPath('hooks');
      if (git('config', 'core.hooksPath') !== null) {
        say('core.hooksPath is set, so no hook was written. Add these lines to the hooks:');
        return printText(names.map((name) => `${name}: ${hookLine(name)}\n`).join(''));
      }
      for (const name of HOOKS)
        if ((names as readonly string[]).includes(name)) installHook(folder, name);
        else uninstallHook(folder, name);
      say(
        `Hooks: ${names.join(', ')}. The next checkout writes ${file}; \`branchgate env --write\` does now.`,
      );
    });

const uninstall = () =>
  new Command('uninstall')
    .description('Remove the hooks of `git install`, and restore those that were there')
    .action(() => {
      const root = worktreeRoot();
      const link = readGitLink();
      const removed = HOOKS.filter((name) => uninstallHook(gitPath('hooks'), name));
      if (link) removeEnvironmentFile(root, link.file);
      git('config', '--local', '--remove-section', 'branchgate');
      say(removed.length === 0 ? 'There was no hook.' : `Removed: ${removed.join(', ')}.`);
    });

/** The recorded gateway and project decide, and a token in the environment is for its own gateway only. */
function useRecorded({ url, project }: GitLink): void {
  const { env } = process;
  if (env.BRANCHGATE_URL !== url) {
    delete env.BRANCHGATE_API_KEY;
    delete env.BRANCHGATE_TOKEN;
  }
  env.BRANCHGATE_URL = url;
  env.BRANCHGATE_PROJECT = project;
}

/** The lines of the file: the URLs, and where programs find the authority of the host. */
function environmentLines(credentials: Schemas['Credentials']): string[] {
  const { ca_certificate: certificate, database_url, direct_url } = credentials;
  const authority = certificate === null ? null : gitPath('branchgate-ca.pem');
  if (authority !== null && certificate !== null) writeFileSync(authority, certificate, { mode: 0o600 });
  const [direct, ...others] = variablesOf(verifiedUrl(direct_url, authority), {
    key: 'DIRECT_URL',
    authority,
  });
  const pooled = ['DATABASE_URL', verifiedUrl(database_url, authority)] as const;
  return [pooled, ...(direct ? [direct] : []), ...others].map(([name, value]) => `${name}="${value}"`);
}

/** A text of at most so many bytes, of whole characters. */
function cut(text: string, bytes: number): string {
  let kept = '';
  for (const character of text) {
    if (Buffer.byteLength(kept + character) > bytes) break;
    kept += character;
  }
  return kept;
}

/** Makes or finds the branch of the git branch, and lets it live on. */
async function branchFor(
  command: Command,
  { project: project_id, clone }: GitLink,
  name: string,
  branch_name: string,
) {
  const session = openSession(command);
  const { client } = session;
  const body = {
    branch_name,
    on_exists: 'return' as const,
    ttl_seconds: TTL_SECONDS,
    labels: { git: cut(name, LABEL_BYTES_MAX), 'git-clone': clone },
    allow: await withOtherAddress(session.url, [ME]),
    include: ['credentials' as const],
  };
  const create = (request: typeof body) =>
    client.create(BRANCHES, { params: { path: { project_id } }, body: request });
  const made = await create(body).catch((error: unknown) => {
    // The name of a database begins with that of the project.
    const longest = error instanceof ResponseError ? error.fields.max_slug_length : null;
    const shorter = typeof longest === 'number' ? slugOf(name, longest) : null;
    if (shorter === null) throw error;
    return create({ ...body, branch_name: shorter });
  });
  const path = { project_id, branch_ref: made.id };
  if (made.labels['git-clone'] === clone)
    await dataOf(client.api.PATCH(BRANCH, { params: { path }, body: { ttl_seconds: TTL_SECONDS } }));
  return made.credentials ?? credentialsOf(command, session, made.id);
}

/** Brings the file of this worktree up to date with what is checked out. */
async function synchronize(command: Command, link: GitLink): Promise<void> {
  const root = worktreeRoot();
  const other = findLink();
  if (other && (other.url !== link.url || other.project !== link.project))
    say(
      'The .branchgate.json here names another project than `git install` has recorded, and is not followed.',
    );
  const name = checkedOut();
  if (name === null) return;
  const branch = branchOf(name);
  if (branch === null) return removeEnvironmentFile(root, link.file);
  // The file is of another branch until then.
  removeEnvironmentFile(root, link.file);
  const credentials = await branchFor(command, link, name, branch);
  const lines = environmentLines(credentials);
  // Another checkout has a hook of its own.
  if (checkedOut() !== name) return;
  writeEnvironmentFile(root, link.file, lines);
  say(`${link.file} has the URLs of the branch ${credentials.branch_name}.`);
}

/** Runs this command again in the background, and waits for it as long as git may wait. */
async function inBackground(name: string): Promise<void> {
  const log = gitPath('branchgate.log');
  const output = openSync(log, 'w', 0o600);
  const args = [...process.argv.slice(1, 2), 'git', '_hook', name, '--wait'];
  const child = spawn(process.execPath, args, { detached: true, stdio: ['ignore', output, output] });
  closeSync(output);
  const ended = new Promise<boolean>((resolve) => child.once('exit', () => resolve(true)));
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), Math.max(0, HOOK_WAIT_MS - performance.now()));
  });
  const isEnded = await Promise.race([ended, late]);
  clearTimeout(timer);
  child.unref();
  if (!isEnded) return say(`branchgate: the branch is made in the background. Its end is in ${log}.`);
  const text = readFileSync(log, 'utf8').trim();
  if (text !== '') say(text);
}

const hook = () =>
  new Command('_hook')
    .description('What the hooks run')
    .argument('<name>')
    .argument('[args...]')
    .option('--wait', 'until the branch is there')
    .action(async (name: string, args: string[], { wait = false }: { wait?: boolean }, command: Command) => {
      const link = readGitLink();
      if (!link) return;
      useRecorded(link);
      if (name === PRE_PUSH) {
        const migration = git('config', '--local', 'branchgate.prepush');
        if (migration === null) return;
        const words = [...process.argv.slice(1, 2), 'rehearse', '--', 'sh', '-c', migration];
        const child = spawn(process.execPath, words, { stdio: 'inherit' });
        return exitWith(
          await new Promise<number>((resolve) => child.once('exit', (code) => resolve(code ?? 1))),
        );
      }
      // Git gives 0 as the third argument for a checkout of files.
      if (name === 'post-checkout' && !wait && args[2] !== '1') return;
      try {
        if (wait) await synchronize(command, link);
        else if (checkedOut() !== null) await inBackground(name);
      } catch (error) {
        // A hook must not stop git.
        say(`branchgate: ${explain(error, command)}`);
      }
    });

const prune = () =>
  new Command('prune')
    .description('Delete the branches of this clone whose git branch is gone')
    .action(async (_options, command: Command) => {
      worktreeRoot();
      const link = readGitLink();
      if (!link) throw new CommandError('usage', 'Run `branchgate git install` first.');
      useRecorded(link);
      const { client } = openSession(command);
      const path = { project_id: link.project };
      const { branches } = await dataOf(
        client.api.GET(BRANCHES, { params: { path, query: { label: `git-clone=${link.clone}` } } }),
      );
      const heads = (git('for-each-ref', '--format=%(refname:short)', 'refs/heads') ?? '').split('\n');
      const living = new Set(
        heads.filter((name) => branchOf(name) !== null).map((name) => cut(name, LABEL_BYTES_MAX)),
      );
      const gone = branches.filter(({ labels }) => !living.has(labels.git ?? ''));
      if (gone.length > 0) {
        const { yes = false } = command.optsWithGlobals<{ yes?: boolean }>();
        await confirm(`Delete ${gone.map(({ branch_name }) => branch_name).join(', ')}?`, { yes });
      }
      const deleted = [];
      for (const { id, branch_name } of gone) {
        const params = { path: { ...path, branch_ref: id } };
        deleted.push({ branch_name, ...(await dataOf(client.api.DELETE(BRANCH, { params }))) });
      }
      printRecords(command, deleted, ['branch_name', 'status', 'deleted_at']);
    });

export const gitCommand = (): Command =>
  [install(), uninstall(), prune()]
    .reduce(
      (group, command) => group.addCommand(command),
      new Command('git').description('A branch for each git branch and worktree'),
    )
    .addCommand(hook(), { hidden: true });

export const envCommand = (): Command =>
  new Command('env')
    .description('Print the URLs of a branch as an environment file, or write it into the worktree')
    .argument(
      '[branch]',
      'name or ID (default: that of the git branch after `git install`, the pinned one, or main)',
    )
    .option('--write', `write the file that \`git install\` has named, by default ${FILE}`)
    .action(async (branch: string | undefined, { write = false }: { write?: boolean }, command: Command) => {
      const link = readGitLink();
      const name = link && branch === undefined ? checkedOut() : null;
      const own = name === null ? null : branchOf(name);
      if (link && name !== null && own !== null) useRecorded(link);
      const credentials =
        link && name !== null && own !== null
          ? await branchFor(command, link, name, own)
          : await credentialsOf(command, openSession(command), branch);
      const lines = environmentLines(credentials);
      if (!write) return printText(lines.map((line) => `${line}\n`).join(''));
      const file = link?.file ?? FILE;
      writeEnvironmentFile(worktreeRoot(), file, lines);
      say(`${file} has the URLs of the branch ${credentials.branch_name}.`);
    });
