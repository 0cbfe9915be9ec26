import { setOutput } from '@actions/core';
import { checkMasking, checkSentence, type MaskingCheck, uncoveredLines } from '../cli/masking-policy.ts';
import type { BranchgateClient } from '../client/client.ts';
import type { Inputs } from './inputs.ts';
import { info } from './log.ts';
import { codeBlock } from './markdown.ts';

/** Compares the policy with a branch on which the migration has run, and sets the output. */
export async function checkBranch(
  client: BranchgateClient,
  { project, maskingFile }: Inputs,
  branch: string,
): Promise<MaskingCheck> {
  const checked = await checkMasking(client, { project_id: project, branch_ref: branch }, maskingFile);
  setOutput('masking-covered', String(checked.covered));
  info(checkSentence(checked));
  for (const line of uncoveredLines(checked)) info(line);
  return checked;
}

/** Why the step fails; null if every column is covered. */
export const uncoveredFailure = (checked: MaskingCheck): string | null =>
  checked.covered ? null : `${checkSentence(checked)} See the list above.`;

/** The part of the comment about the policy. */
export const maskingPart = (checked: MaskingCheck): string =>
  ['#### Masking', checkSentence(checked), checked.covered ? null : codeBlock(uncoveredLines(checked))]
    .filter(Boolean)
    .join('\n\n');
