interface Limited {
  role: string;
  scopes: readonly string[];
  project_id: string | null;
  branch_pattern: string | null;
  cidrs?: readonly string[] | null;
  permissions: readonly string[];
}

/** What a key or a signed-in agent may do, as labels. */
export function Limits({ of, project }: { of: Limited; project: string | undefined }) {
  const limits = [
    of.role,
    of.scopes.map((scope) => scope.split(':').at(-1)).join(', '),
    of.project_id === null ? 'Every project' : (project ?? of.project_id),
    of.branch_pattern ?? '',
    of.cidrs?.join(', ') ?? '',
    of.permissions.includes('data.full') ? 'Unmasked data' : '',
  ];
  return (
    <span className="row">
      {limits.filter(Boolean).map((limit) => (
        <span className="badge plain" key={limit}>
          {limit}
        </span>
      ))}
    </span>
  );
}
