import { setFailed } from '@actions/core';
import { createBranch, deleteBranch } from './branch.ts';
import { writeComment } from './comment.ts';
import { readInputs } from './inputs.ts';
import { signIn } from './sign-in.ts';

try {
  const inputs = readInputs();
  const client = await signIn(inputs);
  if (inputs.command === 'delete') {
    await deleteBranch(client, inputs);
    await writeComment(inputs, null);
  } else await writeComment(inputs, await createBranch(client, inputs));
} catch (error) {
  setFailed(error instanceof Error ? error.message : String(error));
}
