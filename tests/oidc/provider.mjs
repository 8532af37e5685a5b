// A real OpenID provider for the tests: three people, their organisations in the shape of
// Hugging Face's, PKCE always, and a login page without a password.
//   node provider.mjs '{"library": …, "issuer": …, "port": …, "clients": [...]}'
import { generateKeyPairSync } from 'node:crypto';
import http from 'node:http';

const given = JSON.parse(process.argv[2]);
const { Provider } = await import(given.library);

const lab = (roleInOrg) => ({
  sub: 'org-lab', name: 'The Lab', preferred_username: 'lab', picture: '', plan: 'team',
  canPay: false, roleInOrg,
});
const bank = {
  sub: 'org-bank', name: 'The Bank', preferred_username: 'bank', picture: '', canPay: true,
  roleInOrg: 'write', securityRestrictions: ['sso'],
};
const people = {
  'u-ana': { name: 'Ana Alva', preferred_username: 'ana', orgs: [lab('admin'), bank] },
  'u-ben': { name: 'Ben Bo', preferred_username: 'ben', orgs: [] },
  'u-cleo': { name: 'Cleo Cruz', preferred_username: 'cleo', orgs: [lab('read')] },
};
const key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey
  .export({ format: 'jwk' });

const provider = new Provider(given.issuer, {
  clients: given.clients,
  jwks: { keys: [{ ...key, kid: 'one', use: 'sig', alg: 'RS256' }] },
  cookies: { keys: ['only for tests'] },
  scopes: ['openid', 'profile', 'read-memberships', 'contribute-repos'],
  claims: {
    openid: ['sub'],
    profile: ['name', 'preferred_username'],
    'read-memberships': ['orgs'],
  },
  pkce: { required: () => true },
  features: { devInteractions: { enabled: false } },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  ttl: { AccessToken: 3600, AuthorizationCode: 60, Grant: 3600, IdToken: 3600,
    Interaction: 600, Session: 3600 },
  findAccount: (_, id) => (people[id]
    ? { accountId: id, claims: () => ({ sub: id, ...people[id] }) } : undefined),
});

const page = (uid) => `<!doctype html><title>Test provider</title><h1>Who are you?</h1>
<form method="post" action="/interaction/${uid}">
${Object.keys(people).map((id) => `<button name="login" value="${id}">${id}</button>`).join('\n')}
<button name="login" value="deny">deny</button></form>`;

async function body(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return new URLSearchParams(Buffer.concat(parts).toString());
}

async function agree(request, response, login) {
  const found = await provider.interactionDetails(request, response);
  const { client_id: clientId, scope } = found.params;
  const grant = new provider.Grant({ accountId: login, clientId });
  grant.addOIDCScope(scope);
  const result = { login: { accountId: login }, consent: { grantId: await grant.save() } };
  await provider.interactionFinished(request, response, result);
}

const callback = provider.callback();
http.createServer(async (request, response) => {
  try {
    const uid = /^\/interaction\/([\w-]+)$/.exec(request.url ?? '')?.[1];
    if (!uid) return callback(request, response);
    if (request.method === 'GET') {
      const found = await provider.interactionDetails(request, response);
      // Signed in here already: more scopes are agreed to by asking again.
      if (found.prompt.name === 'consent') {
        return await agree(request, response, found.session.accountId);
      }
      response.setHeader('content-type', 'text/html');
      return response.end(page(uid));
    }
    const login = (await body(request)).get('login');
    if (people[login]) return await agree(request, response, login);
    return await provider.interactionFinished(request, response, {
      error: 'access_denied', error_description: '<b>token=secret-of-the-provider</b>',
    });
  } catch (error) {
    response.statusCode = 500;
    return response.end(String(error));
  }
}).listen(given.port, '127.0.0.1', () => console.log('ready'));
