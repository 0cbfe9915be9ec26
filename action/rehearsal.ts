import { setOutput } from '@actions/core';
import { stopSignal } from '../cli/child-command.ts';
import { ConnectionFiles, childEnvironment } from '../cli/connection.ts';
import type { MaskingCheck } from '../cli/masking-policy.ts';
import { withOtherAddress } from '../cli/other-address.ts';
import { rehearsalText } from '../cli/rehearsal-text.ts';
import { runChild } from '../cli/run-child.ts';
import type { BranchgateClient } from '../client/client.ts';
import { type MigrationReport, rehearse } from '../client/rehearsal.ts';
import { maskUrls, sourceOf } from './branch.ts';
import type { Inputs } from './inputs.ts';
import { info } from './log.ts';
import { codeBlock } from './markdown.ts';
import { checkBranch, uncoveredFailure } from './masking.ts';

/**
 * What only the action needs: its inputs with the token of the workflow, its state, and the requests for ID
 * tokens.
 */
const OF_ACTION = /^(?:ACTIONS|INPUT|STATE)_/;

interface Rehearsed {
  report: MigrationReport | null;
  /** Of the migration. */
  exitCode: number;
  /** Null if none was wanted, or the migration failed. */
  masking: MaskingCheck | null;
}

/** Runs the migration on a branch of its own. Its output goes into the log. */
export async function rehearseMigration(client: BranchgateClient, inputs: Inputs): Promise<Rehearsed> {
  const [program = '', ...args] = inputs.run;
  const files = new ConnectionFiles();
  try {
    const source = await sourceOf(client, inputs);
    const { rehearsal, result } = await rehearse(
      client,
      {
        projectId: inputs.project,
        allow: await withOtherAddress(inputs.url, inputs.allow),
        labels: inputs.labels,
        data: inputs.data,
        ...(source !== null && { sourceId: source }),
      },
      {
        migrate: async (credentials) => {
          maskUrls(credentials);
          const env = Object.entries(childEnvironment(credentials, files));
          const passedOn = Object.fromEntries(env.filter(([name]) => !OF_ACTION.test(name)));
          const exitCode = await runChild(program, args, passedOn);
          const isChecked = inputs.checksMasking && exitCode === 0;
          const masking = isChecked ? await checkBranch(client, inputs, credentials.branch_id) : null;
          return { exitCode, masking };
        },
        hasFailed: ({ exitCode }) => exitCode !== 0,
      },
      { signal: stopSignal(), say: info },
    );
    const { report } = rehearsal;
    setOutput('verdict', report?.verdict ?? '');
    if (report) for (const line of rehearsalText(report)) info(line);
    return { report, ...result };
  } finally {
    files.remove();
  }
}

/** Why the step fails; null if the migration ended, no danger was found, and the policy covers its columns. */
export function failureOf({ report, exitCode, masking }: Rehearsed): string | null {
  if (exitCode !== 0)
    return `The migration ended with exit code ${exitCode}, so the report may be incomplete.`;
  if (report?.verdict === 'danger') return 'The rehearsal found a danger: see the report above.';
  return masking && uncoveredFailure(masking);
}

/** The part of the comment about a rehearsal. */
export function rehearsalPart(rehearsed: Rehearsed): string {
  const { report, exitCode } = rehearsed;
  return [
    '#### Rehearsal',
    report && codeBlock(rehearsalText(report)),
    exitCode === 0 ? null : failureOf(rehearsed),
    'The load of the source was not rehearsed: there, a lock also waits for other sessions.',
  ]
    .filter(Boolean)
    .join('\n\n');
}
