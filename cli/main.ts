import { CommanderError } from 'commander';
import { freezeIntrinsics } from '../shared/frozen-intrinsics.ts';
import { printableJson } from '../shared/printable.ts';
import { VERSION } from '../shared/version.ts';
import { EXIT_CODES, errorRecord, exitCodeOf, explain } from './exit-codes.ts';
import { complain, isJson, say } from './output.ts';
import { commandsBelow, createProgram } from './program.ts';

// Answers of a gateway, and records of a database, are input of others.
freezeIntrinsics();

// The reader of the output may be gone, as in `branchgate job list | head -1`.
process.stdout.on('error', () => process.exit(EXIT_CODES.ok.code));

const program = createProgram(VERSION);
let command = program;
program.hook('preAction', (_program, actionCommand) => {
  command = actionCommand;
});
for (const each of commandsBelow(program))
  each.configureOutput({ writeErr: (text) => isJson(program) || complain(text) });

try {
  await program.parseAsync();
} catch (error) {
  process.exitCode = exitCodeOf(error);
  // Without `--json`, Commander has printed its own errors. Help and the version are no errors.
  if (!isJson(program)) {
    if (!(error instanceof CommanderError)) say(`branchgate: ${explain(error, command)}`);
  } else if (process.exitCode !== EXIT_CODES.ok.code) {
    say(printableJson(errorRecord(error, command)));
  }
}
