import { Refusal, readSettings } from './stack/settings.ts';
import { type StackState, startStack } from './stack/stack.ts';

const interrupted = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => interrupted.abort(new Refusal('stopped')));
}

// The reader of the output may exit (`npm start | head`) while the stack runs on.
process.stdout.on('error', () => {});

const say = (line: string) => console.log(line);

/** The first commands of README, or of docs/trying.md in an image. */
const firstCommands = (url: string) =>
  process.env.BRANCHGATE_IMAGE
    ? `  docker exec -it branchgate bash
  branchgate login --email ada@example.com`
    : `  npm run build && alias branchgate="node $PWD/dist/branchgate.mjs"
  branchgate login ${url}`;

const COPIES = `
Each branch is a full copy: the file system of the data has no reflinks, as XFS and Btrfs have.
`;
const IN_IMAGE = `
This image is for trying branchgate, not for production. Clients outside of it have the address of the engine's bridge, and a
rule for one admits all of them: publish the ports on 127.0.0.1 only.
`;

try {
  const settings = readSettings(process.env);
  const stack = await startStack(settings, { report: say, restarts: true, signal: interrupted.signal });
  const stopped = new Promise((resolve) => interrupted.signal.addEventListener('abort', resolve));
  greet(stack.state);
  if (!interrupted.signal.aborted) await stopped;
  say('stopping');
  await stack.stop();
  process.exit(0);
} catch (error) {
  console.error(error instanceof Refusal ? `branchgate: ${error.message}` : error);
  process.exit(1);
}

function greet({ base_url, clone_method }: StackState) {
  say(`
In another terminal (sign in as ada@example.com, password branchgate):
${firstCommands(base_url)}
  branchgate project create shop --if-exists return
  branchgate psql
${clone_method === 'copy' ? COPIES : ''}${process.env.BRANCHGATE_IMAGE ? IN_IMAGE : ''}
branchgate is ready: ${base_url}`);
}
