import type { Schemas } from '../../../client/client.ts';

export const GITHUB = 'https://token.actions.githubusercontent.com';

const NUMBER = '$' + '{{ github.event.number }}';

/** A workflow that creates a branch for each pull request, without a stored secret. */
export const workflowOf = (projectId: string, trust: Schemas['Trust']): string => {
  const api = `${location.origin}/api/v1`;
  const name = (trust.branch_pattern ?? 'pr-*').replace('*', () => NUMBER);
  return `on: pull_request
permissions:
  id-token: write
  contents: read
jobs:
  test:
    runs-on: ubuntu-latest
    env:
      API: ${api}
      PROJECT: ${projectId}
    steps:
      - uses: actions/checkout@v4
      - name: Create a branch of the database
        shell: bash
        run: |
          ID_TOKEN=$(curl -sSf -H "Authorization: Bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN" \\
            "$ACTIONS_ID_TOKEN_REQUEST_URL&audience=${encodeURIComponent(trust.audience)}" | jq -er .value)
          TOKEN=$(curl -sSf "$API/auth/token" \\
            --data-urlencode grant_type=urn:ietf:params:oauth:grant-type:token-exchange \\
            --data-urlencode subject_token_type=urn:ietf:params:oauth:token-type:id_token \\
            --data-urlencode "resource=$API/projects/$PROJECT" \\
            --data-urlencode "subject_token=$ID_TOKEN" | jq -er .access_token)
          URL=$(curl -sSf "$API/projects/$PROJECT/branches" -H "Authorization: Bearer $TOKEN" \\
            -H 'Content-Type: application/json' \\
            -d '{"branch_name":"${name}","on_exists":"return","allow":["me"],"include":["credentials"]}' \\
            | jq -er '.credentials.database_url // empty')
          echo "::add-mask::$URL"
          echo "DATABASE_URL=$URL" >> "$GITHUB_ENV"
      - run: npm test
`;
};
