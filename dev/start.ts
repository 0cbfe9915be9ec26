import { Refusal, readSettings } from './stack/settings.ts';
import { type StackState, startStack } from './stack/stack.ts';

const interrupted = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => interrupted.abort(new Refusal('stopped')));
}

// The reader of the output may exit (`npm start | head`) while the stack runs on.
process.stdout.on('error', () => {});

const say = (line: string) => console.log(line);

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

function greet({ base_url }: StackState) {
  say(`
In another terminal (sign in as ada@example.com, password branchgate):
  npm run build && alias branchgate="node $PWD/dist/branchgate.mjs"
  branchgate login ${base_url}
  branchgate project create shop --if-exists return
  branchgate psql

branchgate is ready: ${base_url}`);
}
