import { execFile, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Browser } from '../support/sign-in/browser.ts';
import { startStack } from '../support/stack/stack.ts';
import type { Report } from './report.ts';
import { addSample, median, type Series, timed } from './rounds.ts';

const run = promisify(execFile);

const PACKAGE = join(import.meta.dirname, '../../cli');
const ROUNDS = 5;
const LIMIT_MS = 10_000;

const METHOD = `Everything as \`npm start\` runs it, on this machine. In each of ${ROUNDS} rounds, a person without any settings installs the \
packed command line into an empty folder, without its optional keychain and without a registry, and works in a terminal: \
\`branchgate login\` through the local provider, whose form is submitted without a pause, \`branchgate project create\`, and \
\`branchgate exec --ephemeral -- psql -c 'select 1'\`, which creates a branch and deletes it again. The time is that of all four \
commands together, without the typing.`;

/** Where the command line asks the person to sign in. */
const SIGN_IN_ADDRESS = /^(http\S+authorize\S+)/m;

interface Place {
  env: NodeJS.ProcessEnv;
  cwd: string;
  signal: AbortSignal;
}

/** Runs a command in a pseudo-terminal. @throws Error with its output if it fails */
function inTerminal(
  command: string,
  place: Place,
  onOutput: (text: string) => void = () => {},
): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(
      'script',
      ['--quiet', '--return', '--flush', '--command', command, '/dev/null'],
      place,
    );
    let output = '';
    child.stdout.on('data', (data) => {
      output += String(data).replaceAll('\r', '');
      onOutput(output);
    });
    child.once('error', reject);
    child.once('close', (code) => {
      if (code === 0) resolve(output);
      else reject(new Error(`${command} ended with ${code}:\n${output}`));
    });
  });
}

/** Signs in once the address is printed. */
function signInWhenAsked(): { onOutput: (output: string) => void; done: () => Promise<unknown> } {
  let signingIn: Promise<unknown> | undefined;
  return {
    onOutput: (output) => {
      const address = SIGN_IN_ADDRESS.exec(output)?.[1];
      if (address) signingIn ??= new Browser(() => true).signIn(address, 'ada@example.com');
    },
    done: async () => signingIn,
  };
}

/** Measures the first branch of a new user, from an empty folder. @param signal aborts it */
export async function measureFirstRun(signal: AbortSignal): Promise<Report> {
  const parent = mkdtempSync(join(tmpdir(), 'branchgate-first-run-'));
  const stack = await startStack();
  const steps: Series = {};
  const totals: number[] = [];
  try {
    const { stdout } = await run('npm', ['pack', '--silent', '--pack-destination', parent], {
      cwd: PACKAGE,
    });
    const packed = join(parent, stdout.trim().split('\n').at(-1) ?? '');
    for (let round = 0; round < ROUNDS; round++) {
      signal.throwIfAborted();
      const folder = mkdtempSync(join(parent, 'empty-'));
      const path = `${folder}/bin:${process.env.PATH}`;
      const env = { PATH: path, HOME: folder, TERM: 'xterm-256color', PAGER: 'cat' };
      const place = { env, cwd: folder, signal };
      const signIn = signInWhenAsked();
      const commands: Record<string, () => Promise<unknown>> = {
        install: () =>
          inTerminal(
            `npm install --global --prefix . --offline --omit=optional --no-audit --no-fund ${packed}`,
            place,
          ),
        login: () => inTerminal(`branchgate login --no-browser ${stack.url}`, place, signIn.onOutput),
        'project create': () => inTerminal('branchgate project create Shop', place),
        'exec --ephemeral': () =>
          inTerminal(`branchgate exec --ephemeral -- psql -c 'select 1 as one'`, place),
      };
      let total = 0;
      for (const [name, command] of Object.entries(commands)) {
        const time = await timed(command);
        addSample(steps, name, time);
        total += time;
      }
      await signIn.done();
      // With several projects the commands would have to name one.
      await inTerminal('branchgate project delete Shop --yes', place);
      totals.push(total);
    }
    return {
      title: 'From an empty folder to a branch',
      method: METHOD,
      goals: [{ name: 'all commands', measured: median(totals), limit: LIMIT_MS, unit: 'ms' }],
      times: { 'One round': { 'all commands': totals, ...steps } },
    };
  } finally {
    await stack.stop();
    rmSync(parent, { recursive: true });
  }
}
