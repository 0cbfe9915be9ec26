import type { ShownBranch } from './branch.ts';
import type { Inputs } from './inputs.ts';
import { warning } from './log.ts';

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

/** The parts of the comment in their order. Each run replaces those that it knows, and keeps the others. */
const PARTS = ['branch', 'changes', 'rehearsal', 'change', 'masking'] as const;
type Parts = Partial<Record<(typeof PARTS)[number], string>>;

const head = (inputs: Inputs) => `${marker(inputs)}\n### Database branch \`${inputs.branch}\`\n`;
const partMarker = (part: string) => `<!-- part ${part} -->\n`;

const join = (inputs: Inputs, parts: Parts) =>
  [
    head(inputs),
    ...PARTS.flatMap((part) => (parts[part] ? [`${partMarker(part)}\n${parts[part].trim()}\n`] : [])),
  ].join('\n');

const partsOf = (body: string): Parts =>
  Object.fromEntries(
    body
      .split(/^<!-- part /m)
      .slice(1)
      .map((part) => /^(\w+) -->\r?\n([\s\S]*)$/.exec(part) ?? [])
      .map(([, name = '', text = '']) => [name, text]),
  );

/** The parts after the deletion of the branch, whose change of `main` stays. */
export const DELETED: Parts = {
  branch: 'Deleted with the pull request.',
  changes: '',
  rehearsal: '',
  masking: '',
};

export function branchPart({ url, project }: Inputs, branch: ShownBranch): string {
  const link = `${url}/projects/${project}/branches/${branch.name}/tables`;
  return `| | |
|---|---|
| open | [tables](${link}) |
| expires | ${branch.expiresAt ?? 'never'} |
| size | ${size(branch.sizeBytes)} |`;
}

/** Writes parts of the one comment of this branch. A failure is a warning, because the work is done. */
export async function writeComment(inputs: Inputs, parts: Parts): Promise<void> {
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
    const own = await existing();
    const body = { body: join(inputs, { ...partsOf(own?.body ?? ''), ...parts }) };
    if (own) await send('PATCH', `${comments}/comments/${own.id}`, body);
    else if (parts !== DELETED) await send('POST', `${comments}/${inputs.commentOn}/comments`, body);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    warning(`The pull request got no comment: ${reason}. It needs \`permissions: pull-requests: write\`.`);
  }
}
