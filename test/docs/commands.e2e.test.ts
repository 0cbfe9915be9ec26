import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  globSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { Browser } from '../support/sign-in/browser.ts';
import { type Stack, startStack, temporaryFolder } from '../support/stack/stack.ts';

/** The node of the system, which is older than that of the repository. */
const SYSTEM = '/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin';

/** The shell blocks of a document. */
const blocksIn = (file: string) =>
  [...readFileSync(join(ROOT, file), 'utf8').matchAll(/^```sh\n(.*?)^```$/gms)].map(
    ([, block = '']) => block,
  );

const DOCUMENTS = ['README.md', ...globSync('docs/**/*.md', { cwd: ROOT })].filter(
  (file) => blocksIn(file).length > 0,
);

/** Blocks that do not run here, by their document and the beginning of each, with the reason. */
const NOT_RUN: Record<string, readonly (readonly [beginning: string, reason: string])[]> = {
  'README.md': [['npm start', 'it starts the stack, and does not end']],
  'docs/changes.md': [
    ['branchgate change create', 'it needs the ID of the change; test/cli/change runs each command'],
  ],
  'docs/ci.md': [['set -eu', 'it needs the ID token of a CI job; test/action runs the same exchange']],
  'docs/cli.md': [['', 'examples with invented names; test/cli/command-line parses each of them']],
  'docs/deploying.md': [
    ['npm ci', 'it installs packages of the network; the others of the block are those of a release'],
    ['npx wrangler login', 'it needs an account at Cloudflare; test/operator deploys to a stand-in'],
    ['MAIL_API_KEY', 'the same'],
    ['export BRANCHGATE_URL', 'it needs another machine; test/package/deploying-page runs it'],
    ['curl -fsSLo', 'it installs a machine; test/package/apt-repository runs it'],
    ['apt', 'it installs a machine; test/package/deploying-page runs it'],
  ],
  'docs/events.md': [
    ['curl -sS -N', 'the stream does not end'],
    ['curl -sS -H @bearer.txt', 'it calls a server of another company; test/end-to-end/events delivers'],
  ],
  'docs/following.md': [['branchgate follow', 'it needs another server; test/cli/follow has one']],
  'docs/going-back.md': [
    ['branchgate branch create before', 'the host of the stack keeps no past; test/end-to-end/past has one'],
    ['branchgate bisect', 'as before; test/end-to-end/past runs it'],
  ],
  'docs/importing.md': [
    ['branchgate import', 'it needs another server; test/cli/host-import has one'],
    ['pg_dump', 'it needs another server; test/cli/host-import runs it'],
  ],
  'docs/machine-access.md': [
    ['curl -sS "$API/auth/token"', 'it needs the ID token of a CI job; test/action runs the exchange'],
  ],
  'docs/many-hosts.md': [
    ['branchgate host add', 'a standby needs another machine; test/end-to-end/standby has one'],
  ],
  'docs/operating.md': [
    ['branchgate api POST /platform/v1/tenants', 'the local stack has a tenant of that name already'],
    ['install -D', 'it configures the machine; test/package/debian-system does'],
    ['set -a; . /etc/branchgate/agent.env', 'it needs an installed host; test/package/debian-system has one'],
    ['runuser', 'the same'],
    ['setpriv', 'the same'],
    ['npx wrangler d1', 'it needs an account at Cloudflare'],
    ['curl -sS -X PUT https://api.cloudflare.com', 'the same'],
  ],
  'docs/private-networks.md': [
    ['branchgate psql', 'it needs another network; test/cli/command-line has two translations of addresses'],
  ],
  'docs/serverless.md': [
    ['branchgate rule add 0.0.0.0/0', 'it names a rule; test/cli/command-line adds and changes one'],
    ['branchgate connection-string', 'the same; test/cli/command-line prints the lines'],
    ['branch=', 'it deploys to Vercel; test/docs/previews has a stand-in'],
    ['name="shop-pr', 'it deploys to Cloudflare; the same'],
    ['branchgate branch delete', 'the same'],
  ],
  'docs/rehearsal.md': [
    ['branchgate rehearse', 'the migrations are those of the reader; test/cli/rehearse has some'],
  ],
  'docs/trying.md': [
    ['docker build', 'no engine runs here; test/package/image builds and starts it'],
    ['docker exec', 'the same; test/package/image runs each command'],
  ],
};

/** @throws Error while nothing listens on this port of the machine */
async function listens(port: number): Promise<void> {
  const socket = connect(port, '127.0.0.1');
  await once(socket, 'connect');
  socket.destroy();
}

const isRun = (file: string) => (block: string) =>
  !(NOT_RUN[file] ?? []).some(([beginning]) => block.startsWith(beginning));

/** The blocks of a document that run here. */
const blocksOf = (file: string) => blocksIn(file).filter(isRun(file));

const SIGNED_IN = 'alias branchgate="node $PWD/dist/branchgate.mjs"\nbranchgate link shop\n';
const AS_ADA = `
API=$(node -p "require('./.dev/stack.json').base_url")/api/v1
BASE_URL=\${API%/api/v1}
TOKEN=$(npm run --silent dev:token -- --email ada@example.com --tenant acme --role owner)
printf 'Authorization: Bearer %s\\n' "$TOKEN" > bearer.txt
PROJECT=$(curl -sS -H @bearer.txt "$API/projects" -d '{"name": "Docs"}' | node -p "JSON.parse(require('fs').readFileSync(0)).id")
`;
const PR_7 = 'branchgate branch create pr-7 --if-exists return --ttl 1d --allow me\n';
const AS_OPERATOR = `
export BRANCHGATE_URL=$(node -p "require('./.dev/stack.json').base_url") BRANCHGATE_PLATFORM_SECRET=$OPERATOR_SECRET
HOST_ID=$(branchgate host list --json | node -p "JSON.parse(require('fs').readFileSync(0))[0].id")
`;

/** What the reader of a page has before: pages by what is typed first. README comes first, and signs in. */
const PAGES: Record<string, string> = {
  'docs/agents.md': SIGNED_IN,
  'docs/ci.md': SIGNED_IN,
  'docs/clients.md': `${SIGNED_IN}${PR_7}
printf "import pg from 'pg'; const client = new pg.Client(process.env.DATABASE_URL); await client.connect(); await client.end();" > app.mjs
branchgate rule add 203.0.113.0/24 >/dev/null
printf 'create table film (id int);\\nALTER TABLE film OWNER TO postgres;\\n' > pagila-schema.sql
`,
  'docs/going-back.md': `${SIGNED_IN}branchgate snapshot create main --name nightly >/dev/null\n`,
  'docs/machine-access.md': AS_ADA,
  'docs/masking.md': `${SIGNED_IN}branchgate branch delete pr-7 --purge --yes || true
branchgate psql -- -q -c 'create schema shop' \\
  -c 'create table customer (id int primary key, email text, phone text, born_on date)' \\
  -c 'create table shop.order (id int primary key, address jsonb)' \\
  -c 'create table country (code text primary key)'
`,
  'docs/operating.md': `${SIGNED_IN}${AS_OPERATOR}`,
  'docs/schema-difference.md': `${SIGNED_IN}${PR_7}branchgate psql pr-7 -- -q -c 'create table later (id int)'\n`,
  'docs/short-lived-branches.md': AS_ADA,
  'docs/signing-in.md': AS_ADA,
};

/** What the text of a page asks for before a block, by the beginning of the block. */
const BETWEEN: Record<string, string> = {
  // The page has just reset the password, which ended the sessions.
  'INVITATION=': `
STEP=$(echo '{"email": "grace@example.org", "password": "staple a new battery"}' | post login | field .pre_auth_token)
TOKEN=$(bearer "$STEP" | curl -sS -X POST -H @- "$API/auth/2fa/skip" | field .access_token)
`,
};

const typedBlock = (block: string) => {
  const [, before = ''] = Object.entries(BETWEEN).find(([beginning]) => block.startsWith(beginning)) ?? [];
  return `${before}${block}`;
};

test('each command of the documents is run, or listed with the reason why it is not', () => {
  expect(Object.keys(NOT_RUN).filter((file) => !existsSync(join(ROOT, file)))).toEqual([]);
  const run = ['README.md', 'docs/api.md', ...Object.keys(PAGES)];
  const forgotten = DOCUMENTS.filter((file) => blocksOf(file).length > 0 && !run.includes(file));
  expect(forgotten).toEqual([]);
  const stale = Object.entries(NOT_RUN).flatMap(([file, entries]) =>
    entries.filter(([beginning]) => !blocksIn(file).some((block) => block.startsWith(beginning))),
  );
  expect(stale).toEqual([]);
  expect(run.filter((file) => blocksOf(file).length === 0)).toEqual([]);
});

describe.runIf(IS_NIGHTLY)('the commands of the documents run as they stand', () => {
  let stack: Stack;
  let folder: string;

  beforeAll(async () => {
    folder = temporaryFolder();
    // The build writes to that of the repository, which a new checkout does not have.
    mkdirSync(join(ROOT, 'dist'), { recursive: true });
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
        OPERATOR_SECRET: gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET,
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
      // A person is slower than the program that waits for the browser.
      const { port } = new URL(new URL(address).searchParams.get('redirect_uri') ?? address);
      eventually(() => listens(Number(port)))
        .then(() => new Browser(() => true).signIn(address, 'ada@example.com'))
        .catch((error) => {
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

  test.each(Object.entries(PAGES))('of %s', { timeout: 600_000 }, async (file, before) => {
    const { code, screen } = await type(`${before}\n${blocksOf(file).map(typedBlock).join('\n')}`);
    expect(code, screen).toBe(0);
    // The API explains what is wrong with a request that curl calls a success.
    expect(screen).not.toMatch(/"error": ?"/);
  });
});
