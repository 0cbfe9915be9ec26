import { getState } from '@actions/core';
import { MADE } from './branch.ts';
import { changesOf, changesText } from './changes.ts';
import { writeComment } from './comment.ts';
import { readInputs } from './inputs.ts';
import { warning } from './log.ts';
import { signIn } from './sign-in.ts';

// At the end of the job, because its migrations and tests have changed the branch by then.
try {
  const inputs = getState(MADE) === '' ? null : readInputs();
  if (inputs !== null && inputs.commentOn !== null) {
    // The token of the beginning may have expired.
    const client = await signIn(inputs);
    await writeComment(inputs, { changes: changesText(await changesOf(client, inputs)) });
  }
} catch (error) {
  // The job has its result already.
  warning(`The comment does not show the changes: ${error instanceof Error ? error.message : error}`);
}
