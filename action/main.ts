import type { Change } from '../client/changes.ts';
import type { BranchgateClient } from '../client/client.ts';
import { createBranch, deleteBranch } from './branch.ts';
import { branchPart, DELETED, writeComment } from './comment.ts';
import { type Command, type Inputs, readInputs } from './inputs.ts';
import { setFailed } from './log.ts';
import { applyChange, changePart, failureOfChange, proposeChange } from './main-change.ts';
import { checkBranch, maskingPart, uncoveredFailure } from './masking.ts';
import { failureOf, rehearsalPart, rehearseMigration } from './rehearsal.ts';
import { signIn } from './sign-in.ts';

const COMMANDS: Record<Command, (client: BranchgateClient, inputs: Inputs) => Promise<void>> = {
  async create(client, inputs) {
    await writeComment(inputs, { branch: branchPart(inputs, await createBranch(client, inputs)) });
  },
  async delete(client, inputs) {
    await deleteBranch(client, inputs);
    await writeComment(inputs, DELETED);
  },
  async rehearse(client, inputs) {
    const rehearsed = await rehearseMigration(client, inputs);
    const { masking } = rehearsed;
    await writeComment(inputs, {
      rehearsal: rehearsalPart(rehearsed),
      ...(masking && { masking: maskingPart(masking) }),
    });
    const failure = failureOf(rehearsed);
    if (failure !== null) setFailed(failure);
  },
  async 'check-masking'(client, inputs) {
    const checked = await checkBranch(client, inputs, inputs.branch);
    await writeComment(inputs, { masking: maskingPart(checked) });
    const failure = uncoveredFailure(checked);
    if (failure !== null) setFailed(failure);
  },
  async propose(client, inputs) {
    await reportChange(inputs, await proposeChange(client, inputs));
  },
  async apply(client, inputs) {
    const applied = await applyChange(client, inputs);
    if (applied) await reportChange(inputs, applied);
  },
};

async function reportChange(inputs: Inputs, change: Change): Promise<void> {
  await writeComment(inputs, { change: changePart(change) });
  const failure = failureOfChange(change);
  if (failure !== null) setFailed(failure);
}

try {
  const inputs = readInputs();
  await COMMANDS[inputs.command](await signIn(inputs), inputs);
} catch (error) {
  setFailed(error instanceof Error ? error.message : String(error));
}
