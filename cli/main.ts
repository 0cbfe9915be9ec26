import { CommanderError } from 'commander';
import { EXIT_CODES, exitCodeOf, explain } from './exit-codes.ts';
import { say } from './output.ts';
import packageFile from './package.json' with { type: 'json' };
import { createProgram } from './program.ts';

// The reader of the output may be gone, as in `branchgate job list | head -1`.
process.stdout.on('error', () => process.exit(EXIT_CODES.ok.code));

const program = createProgram(packageFile.version);
let command = program;
program.hook('preAction', (_program, actionCommand) => {
  command = actionCommand;
});

try {
  await program.parseAsync();
} catch (error) {
  // Commander has printed its own errors; help and version are no errors.
  if (error instanceof CommanderError) {
    process.exitCode = error.exitCode === 0 ? EXIT_CODES.ok.code : EXIT_CODES.usage.code;
  } else {
    say(`branchgate: ${explain(error, command)}`);
    process.exitCode = exitCodeOf(error);
  }
}
