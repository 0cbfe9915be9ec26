import { warning } from '@actions/core';
import type { ShownBranch } from './branch.ts';
import type { Inputs } from './inputs.ts';

const PER_PAGE = 100;
const PAGES_MAX = 30;

interface Comment {
  id: number;
  body?: string | null;
  user?: { type?: string } | null;
}

/** Finds the comment again; invisible on the page. */
const marker = ({ project, branch }: Inputs) => `<!-- branchgate ${project} ${branch} -->`;

const size = (bytes: number | null) =>
  bytes === null ? 'not measured yet' : `${(bytes / 1_048_576).toFixed(1)} MiB`;

/** @param branch null after its deletion */
function commentText(inputs: Inputs, branch: ShownBranch | null): string {
  const head = `${marker(inputs)}\n### Database branch \`${inputs.branch}\`\n`;
  if (branch === null) return `${head}\nDeleted with the pull request.\n`;
  const link = `${inputs.url}/projects/${inputs.project}/branches/${branch.name}/tables`;
  return `${head}
| | |
|---|---|
| open | [tables](${link}) |
| expires | ${branch.expiresAt ?? 'never'} |
| size | ${size(branch.sizeBytes)} |
`;
}

/** Writes the one comment of this branch. A failure is a warning, because the branch exists. */
export async function writeComment(inputs: Inputs, branch: ShownBranch | null): Promise<void> {
  const { GITHUB_API_URL: api, GITHUB_REPOSITORY: repository } = process.env;
  if (inputs.commentOn === null || !api || !repository || !inputs.githubToken) return;
  const comments = `${api}/repos/${repository}/issues`;
  const send = async <T>(method: string, url: string, body?: object): Promise<T> => {
    const response = await fetch(url, {
      method,
      headers: {
        accept: 'application/vnd.github+json',
        authorization: `Bearer ${inputs.githubToken}`,
        'x-github-api-version': '2022-11-28',
      },
      ...(body && { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`${method} of the comment: ${response.status}`);
    return (await response.json()) as T;
  };
  const existing = async (): Promise<Comment | null> => {
    for (let page = 1; page <= PAGES_MAX; page += 1) {
      const url = `${comments}/${inputs.commentOn}/comments?per_page=${PER_PAGE}&page=${page}`;
      const found = await send<Comment[]>('GET', url);
      // Everybody can write the marker into a comment, and edit the own comment later.
      const own = found.find(({ body, user }) => user?.type === 'Bot' && body?.startsWith(marker(inputs)));
      if (own) return own;
      if (found.length < PER_PAGE) return null;
    }
    return null;
  };
  try {
    const body = { body: commentText(inputs, branch) };
    const own = await existing();
    if (own) await send('PATCH', `${comments}/comments/${own.id}`, body);
    else if (branch) await send('POST', `${comments}/${inputs.commentOn}/comments`, body);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    warning(`The pull request got no comment: ${reason}. It needs \`permissions: pull-requests: write\`.`);
  }
}
