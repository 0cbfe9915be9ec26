import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { Browser } from '../support/sign-in/browser.ts';
import { type Stack, startStack, temporaryFolder } from '../support/stack/stack.ts';

/** The node of the system, which is older than that of the repository. */
const SYSTEM = '/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin';

/** The shell blocks of a document, except the one that starts the stack. */
const blocksOf = (file: string) =>
  [...readFileSync(join(ROOT, file), 'utf8').matchAll(/^```sh\n(.*?)^```$/gms)]
    .map(([, block = '']) => block)
    .filter((block) => !/^npm (?:start|test)/m.test(block));

describe.runIf(IS_NIGHTLY)('the commands of the documents run as they stand', () => {
  let stack: Stack;
  let folder: string;

  beforeAll(async () => {
    folder = temporaryFolder();
    for (const name of readdirSync(ROOT))
      if (!name.startsWith('.')) symlinkSync(join(ROOT, name), join(folder, name));
    // In the folder itself, because Node looks for the packages of a program above its real path.
    const devDir = join(folder, '.dev');
    mkdirSync(devDir);
    stack = await startStack({ devDir, restarts: false });
  });
  afterAll(async () => {
    await stack?.stop();
    rmSync(folder, { recursive: true, force: true });
  });

  /** Runs them as a person does, in a terminal; the browser signs in at the address that appears. */
  async function type(commands: string) {
    const script = join(folder, 'typed.sh');
    writeFileSync(script, `shopt -s expand_aliases\nset -e\n${commands}`);
    const terminal = spawn('script', ['-qefc', `bash ${script}`, '/dev/null'], {
      cwd: folder,
      env: {
        PATH: SYSTEM,
        HOME: folder,
        XDG_CONFIG_HOME: folder,
        TMPDIR: folder,
        NO_COLOR: '1',
        PAGER: 'cat',
        npm_config_update_notifier: 'false',
      },
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    let screen = '';
    let isSignedIn = false;
    terminal.stdout.setEncoding('utf8').on('data', (text: string) => {
      screen += text;
      const address = /(http\S+authorize\S+)/.exec(screen)?.[1];
      if (address === undefined || isSignedIn) return;
      isSignedIn = true;
      new Browser(() => true).signIn(address, 'ada@example.com').catch((error) => {
        screen += String(error);
      });
    });
    const isAsked = eventually(async () => expect(screen).toMatch(/=[>#] $/), 600).then(
      () => terminal.stdin.write('\\q\n'),
      () => {},
    );
    const [code] = await once(terminal, 'close');
    await Promise.race([isAsked, Promise.resolve()]);
    return { code, screen: screen.replaceAll('\r', '') };
  }

  test('of the README, with the node of the system', { timeout: 900_000 }, async () => {
    const { code, screen } = await type(blocksOf('README.md').join('\n'));
    expect(code, screen).toBe(0);
    expect(screen).toContain('DELETE 99990');
    expect(screen).toMatch(/^ +100000$/m);
    expect(screen).toContain("'item 3'");
    // An older psql of the system says that about itself.
    expect(screen.replaceAll(/^WARNING: psql major version .*$/gm, '')).not.toMatch(/warning/i);
    expect(existsSync(join(stack.devDir, 'pr-1.env'))).toBe(true);
  });

  test('of the API with curl', { timeout: 600_000 }, async () => {
    const { code, screen } = await type(blocksOf('docs/api.md').join('\n'));
    expect(code, screen).toBe(0);
    expect(screen).toContain('DELETE 99990');
    expect(screen).toContain("'item 3'");
  });
});
