// The endpoint of the examples in openapi.yaml. In telapi dev, the demo's endpoint replaces it.
const exampleEndpoint = /ep_01935f5e-7c00-7b6e-9c1a-3f6f0a1d2b4c/g;
// Where the credentials are kept until the tab is closed.
const storageKey = "telapi-docs-credentials";

// Returns the result of an operation on the browser's storage, or undefined if the browser blocks it.
function tryStorage(operation) {
  try {
    return operation();
  } catch {
    return undefined;
  }
}

// Follows the theme that was selected in the playground; System follows the browser.
const systemTheme = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const theme = tryStorage(() => localStorage.getItem("theme")) ?? "light dark";
  document.documentElement.classList.toggle("dark-mode", theme === "dark" || (theme === "light dark" && systemTheme.matches));
}
applyTheme();
systemTheme.addEventListener("change", applyTheme);
addEventListener("storage", applyTheme);

// Keeps credentials for the session, shows the operations before the description of the API, and the first
// credential, the API key, when the list of credentials opens: Swagger UI would focus the last one.
const plugin = ({ React }) => ({
  statePlugins: {
    auth: {
      wrapActions: {
        persistAuthorizationIfNeeded: (_, { authSelectors }) => () =>
          tryStorage(() => sessionStorage.setItem(storageKey, JSON.stringify(authSelectors.authorized().toJS()))),
      },
    },
  },
  wrapComponents: {
    InfoContainer: (Info) => (props) => React.createElement("details", { className: "about" }, React.createElement("summary", null, "About this API"), React.createElement(Info, props)),
    authorizationPopup: (Popup) => (props) => {
      React.useEffect(() => {
        document.querySelector(".modal-ux input, .modal-ux button")?.focus();
        document.querySelector(".modal-ux-content").scrollTop = 0;
      }, []);
      return React.createElement(Popup, props);
    },
  },
});

async function start() {
  const config = await fetch("../playground/config.json").then((response) => (response.ok ? response.json() : {})).catch(() => ({}));
  const endpoint = config.endpoints?.[0]?.id;
  const ui = SwaggerUIBundle({
    url: "../openapi.yaml",
    dom_id: "#reference",
    deepLinking: true,
    showExtensions: true,
    defaultModelsExpandDepth: 0,
    validatorUrl: null, // openapi.yaml is linted where it is written; nothing is requested from other hosts
    plugins: [plugin],
    responseInterceptor: (response) => {
      if (endpoint && response.url?.endsWith("/openapi.yaml")) response.text = response.data = response.text.replace(exampleEndpoint, endpoint);
      return response;
    },
    onComplete: () => {
      const saved = tryStorage(() => sessionStorage.getItem(storageKey));
      if (saved) ui.authActions.restoreAuthorization({ authorized: JSON.parse(saved) });
      else if (config.apiKey) ui.preauthorizeApiKey("ApiKey", config.apiKey);
    },
  });
}
start();
